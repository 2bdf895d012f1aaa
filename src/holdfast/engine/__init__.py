"""The only code that writes inventory. It loads the events of a batch, lets `core` decide, and saves the changes."""
