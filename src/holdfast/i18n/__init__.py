"""Translations and the formatting of money and times, shared by pages, e-mails and tickets."""
