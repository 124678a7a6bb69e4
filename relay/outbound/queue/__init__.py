"""The queue in PostgreSQL: mail is put in, claimed, finished, retried and reaped here.

`states.py` is the law.  `enqueue.py` puts in and `announcer.py` tells of it; `lanes.py` plans what
to claim next, `store.py` claims, renews and reaps; `settler.py` says what the end of a delivery
comes to, and `finaliser.py` records it.  What is queued is durable after COMMIT, is claimed under a
lease, and is finished once, by the fence that came with it.

Entered by `enqueue.py` (to queue), `store.py` with `claimed.py` (to claim), `finaliser.py` (to
finish); `lanes.py` and `states.py` have the words for all of it.
"""
