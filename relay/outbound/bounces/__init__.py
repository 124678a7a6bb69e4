"""Bounces and complaints, done to the mail that they are about.

`returned.py` keeps what came back by SMTP and makes it the truth of its message; `notified.py` does
the same with what an upstream reports over HTTP.  How such mail is read, and what follows from it,
is `relay.returns`.  Each is done once, in one transaction.

Entered by both.
"""
