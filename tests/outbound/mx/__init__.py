"""Direct delivery."""
