"""The acceptance tests that the outbound queue was specified with, against the queue as it is."""
