"""What webhooks tell of.

A leaf, which the command line imports without the rest.
"""

from __future__ import annotations

from typing import Literal, get_args

Kind = Literal[
    "message.delivered",
    "message.failed",
    "message.bounced",
    "message.expired",
    "message.delayed",
    "message.complained",
    "message.unsubscribed",
    "account.activated",
    "account.recovered",
]
"""What the owner of outbound mail and of accounts may ask to be told; mailboxes are told
`message.arrived`."""
KINDS: tuple[Kind, ...] = get_args(Kind)

ARRIVED = "message.arrived"
UNSUBSCRIBED: Kind = "message.unsubscribed"
