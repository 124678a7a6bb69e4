"""Waiting: whoever waits for mail, and what wakes them.

`waiters.py` wakes them and counts how many there may be; where many wait on one mailbox,
`crowds.py` has one of them look for all.  A wake-up is a hint: whoever has one looks in the
database.  What is answered as it comes is `feeds`.

Entered by both.
"""
