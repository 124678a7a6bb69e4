"""Questions to the DNS, and who asks them."""
