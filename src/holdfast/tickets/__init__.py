"""Tickets: what is signed, how it is printed, and who is let in."""
