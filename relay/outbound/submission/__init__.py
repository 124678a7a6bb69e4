"""Submission: mail from those who have a credential, by SMTP, over HTTP or by release.

`sending.py` says once who may send from which address, and queues; `port.py` answers the sessions
of the submission port, `submitted.py` reads what they bring, and `release.py` sends on what was
received. What is refused is refused before it is queued; what is accepted is queued after COMMIT.

Entered by `sending.py`, `port.py` and `release.py`.
"""
