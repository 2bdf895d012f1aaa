"""Checks an installation: its settings, its servers and its machine."""
