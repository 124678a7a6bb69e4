"""Outbound mail: the law of a message, its queue, what is said, and how it is sent."""
