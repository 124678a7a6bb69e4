"""Lifecycle mail: accounts, their tokens, and how a token becomes a letter, or a line."""
