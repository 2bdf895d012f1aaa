"""Notifications to the outside world: e-mails to buyers and webhook events to orgs."""
