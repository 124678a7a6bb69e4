"""Suppression: who gets no mail, and who gets no more of whose bulk mail.

`suppressions.py` has the list, and what puts an address there; `unsubscribing.py` the fields and
links of one-click unsubscribe (RFC 2369, 8058).  An entry refuses new mail at once, and cancels
what is queued when its turn comes.

Entered by both.
"""
