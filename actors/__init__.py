"""The long-lived actors of the relay: one file a role, wired by `actors/tree.py` alone."""
