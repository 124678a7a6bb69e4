"""Expiring inboxes: who has one, what arrives in it, and what the parser makes of that."""
