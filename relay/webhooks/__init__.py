"""Webhooks: owners are told what happens, signed, at least once."""
