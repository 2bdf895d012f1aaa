"""Notifications to the outside world: emails to buyers and webhook events to orgs."""
