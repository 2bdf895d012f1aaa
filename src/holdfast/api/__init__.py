"""The HTTP API: one table of operations, and the code that turns requests into calls."""
