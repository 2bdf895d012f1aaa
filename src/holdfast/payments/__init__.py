"""Money: providers behind one protocol, the inbox of their notices, refunds, reconciliation, and receipts."""
