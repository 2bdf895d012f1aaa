"""Payments: providers behind one protocol, the inbox of their notices, refunds, reconciliation, and receipt files."""
