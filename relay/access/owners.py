"""Owners: whose a mailbox, a message or an account is.

An owner is the id of an API key (`keys.py`), or the administrator.  What nobody identified made has
none: an anonymous mailbox is opened by its session token alone.
"""

from __future__ import annotations

from uuid import UUID

ADMINISTRATOR_ID = UUID(int=0)
"""The owner of what the administrator or SQL made; the migrations know it, too."""
