"""A client of Relay: inboxes for tests, and mail that is waited for.

    from relay_client import Relay

    with Relay() as relay, relay.inbox() as inbox:
        sign_up(inbox.address)
        assert inbox.wait(subject="Welcome").code == "123456"

`AsyncRelay` is the same for asyncio and Trio.  Failures are `RelayError`s.
"""

from relay_client._async import (
    AsyncAttachment,
    AsyncInbox,
    AsyncInboxContext,
    AsyncMessage,
    AsyncOutbound,
    AsyncRelay,
)
from relay_client._records import Check, Checks, Finding, Headers, Info, OutboundEntry, State
from relay_client._sending import NewAttachment
from relay_client._sync import Attachment, Inbox, Message, Outbound, Relay
from relay_client._version import __version__
from relay_client.errors import (
    NoSuchLink,
    NotDelivered,
    Refused,
    RelayError,
    UnexpectedMail,
    Unreachable,
    WaitTimeout,
)

__all__ = [
    "AsyncAttachment",
    "AsyncInbox",
    "AsyncInboxContext",
    "AsyncMessage",
    "AsyncOutbound",
    "AsyncRelay",
    "Attachment",
    "Check",
    "Checks",
    "Finding",
    "Headers",
    "Inbox",
    "Info",
    "Message",
    "NewAttachment",
    "NoSuchLink",
    "NotDelivered",
    "Outbound",
    "OutboundEntry",
    "Refused",
    "Relay",
    "RelayError",
    "State",
    "UnexpectedMail",
    "Unreachable",
    "WaitTimeout",
    "__version__",
]
