"""Credentials: what a caller shows, and who that is.

`callers.py` has the caller of a call; `page_sessions.py` the sessions of the operator's page,
`cookies.py` what a browser shows of one, `tickets.py` what stands in a URL where no header can be
set, which is a seal (`seals.py`); `timing.py` refuses in one time whatever the reason.  Secrets are
handed out once and stored as hashes.  What a credential allows is said in `gate/auth.py`.

Entered by `callers.py` (nearly every call), `tickets.py` and `page_sessions.py`.
"""
