"""The HTTP edge: one table of operations, and what turns requests into calls of them."""
