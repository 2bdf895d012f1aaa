"""The desk: the only code that writes inventory. It opens the books of a batch, has them decided, and saves them."""
