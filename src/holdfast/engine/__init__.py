"""The only code that writes stock. It loads the events of a batch, lets `core` decide, and saves the changes."""
