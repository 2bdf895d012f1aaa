"""Telegram bots: workers take shifts and send receipts, staff publish shifts and review receipts."""
