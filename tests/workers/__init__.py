"""The acceptance tests that the outbound queue was specified with, against the queue as it is.

They mirror no package: each is kept as it was specified, and goes through several modules.
"""
