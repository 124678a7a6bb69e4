"""Questions to the DNS, and who answers them."""
