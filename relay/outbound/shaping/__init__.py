"""How much receivers are given, and what their replies ask for: traffic rules (docs/traffic.md)."""
