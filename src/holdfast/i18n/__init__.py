"""Translations, and the formatting of money and times, for pages, emails and tickets."""
