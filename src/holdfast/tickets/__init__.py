"""Tickets: signed codes, their keys, and how a ticket looks on screen, on paper and in a calendar."""
