"""The gate: what every request passes before its call.

`allowed_hosts.py` lets in the `Host` and `Origin` that name this relay, `auth.py` says who calls
and whether they may, and `bodies.py` reads a large body only for who may send it.  `app.py` has the
order.

Entered by `app.py` beside this folder; by a few resources for what `auth.py` makes of a credential.
"""
