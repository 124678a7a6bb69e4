"""Owners: whose a mailbox, a message or an account is.

An owner is the id of an API key (`keys.py`), or the administrator.  What nobody identified made has
none: an anonymous mailbox is opened by its session token alone.  Reports of TLS have an owner of
their own: what comes back of them concerns nobody else, and no other mail is taken for one.
"""

from __future__ import annotations

from uuid import UUID

ADMINISTRATOR_ID = UUID(int=0)
"""The owner of what the administrator or SQL made; the migrations know it, too."""

REPORTS_ID = UUID(int=1)
"""The owner of reports of TLS (RFC 8460), which strangers have mailed to whom they like."""
