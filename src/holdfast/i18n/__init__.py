"""Translations, and the formatting of money and times, for pages, e-mails and tickets."""
