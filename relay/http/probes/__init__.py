"""What the control plane asks of others: the DNS, and servers by HTTPS, where a call wants it."""
