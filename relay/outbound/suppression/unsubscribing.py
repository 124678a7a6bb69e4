"""One-click unsubscribe (RFC 2369, 8058): the fields of bulk mail, and the links that they hold.

Format: `PUBLIC_URL/unsubscribe?token=TOKEN`.  TOKEN is base64url (without padding) of AES-SIV
(RFC 5297, 256-bit keys) of the owner and the message's id, 16 octets each, and the recipient's
address in UTF-8.  The key is derived from a signing key of the relay's, so that no link passes for
a seal of another purpose.  The token says all that is needed, for a mail is kept for longer than
the relay keeps its message.

Promises
- A link is read only if this relay (or one with the same keys) made it; rotated keys go on reading.
  Of each token there is one spelling.
- Whoever sees a link (a log, a proxy, the history of a browser) learns no address from it.
- The same message and the same keys give the same link.
- Bulk mail has both fields, or none where its author wrote either: then it is theirs to say.  Other
  mail has none.

Fails: `link_of` returns None for whatever was not made here.

Pure, but for the keys, which may change between two calls.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from relay.access.owners import REPORTS_ID
from relay.outbound.queue.claimed import Claimed
from relay.outbound.queue.lanes import BULK
from relay.smtp.client import Mail

PATH = "/unsubscribe"
"""The path of links, below the public address."""

FIELD, ONE_CLICK = "List-Unsubscribe", "One-Click"
"""The body that a mail program posts to a link when its reader asks it to (RFC 8058, 3.1)."""

MAX_TOKEN = 600
"""Characters of a token; one of the longest address has 403."""

_PURPOSE = b"relay unsubscribe"
_TOKEN = re.compile(rf"[A-Za-z0-9_-]{{66,{MAX_TOKEN}}}", re.ASCII)
_IDS = 32  # octets: the owner and the message
_OWN = re.compile(rb"(?:\A|\n)list-unsubscribe(?:-post)?[ \t]*:", re.IGNORECASE)


class Link(NamedTuple):
    """The content of a link: whose bulk mail goes to whom no more, and which mail it was in."""

    owner: UUID
    message: UUID
    address: str


class Unsubscribing:
    """The links below one public address."""

    def __init__(self, public_url: str, signing: Callable[[], Sequence[bytes]]) -> None:
        """`public_url`: https, or empty: no mail gets the fields, and links are read all the same.

        `signing`: the signing keys now; the first makes links, all read them.
        """
        self._before = f"{public_url}{PATH}?token=" if public_url else ""
        self._signing = signing

    def url_of(self, link: Link) -> str:
        """Return the address of a link."""
        said = link.owner.bytes + link.message.bytes + link.address.encode()
        sealed = _cipher(self._signing()[0]).encrypt(said, None)
        return self._before + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode()

    def link_of(self, token: str) -> Link | None:
        """Return what a token says, or None if it was not made here."""
        if not _TOKEN.fullmatch(token):
            return None
        try:
            sealed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except binascii.Error:
            return None
        if base64.urlsafe_b64encode(sealed).rstrip(b"=").decode() != token:
            return None
        for key in self._signing():
            try:
                said = _cipher(key).decrypt(sealed, None)
            except InvalidTag:
                continue
            owner, message = UUID(bytes=said[:16]), UUID(bytes=said[16:_IDS])
            return Link(owner, message, said[_IDS:].decode())
        return None

    def wants(self, message: Claimed) -> bool:
        """Whether a message is one of those that get the fields, unless its author wrote them.

        Nobody has subscribed to a report of TLS: whom it goes to, their domain's record says.
        """
        bulk = message.priority == BULK and message.owner != REPORTS_ID
        return bool(self._before) and bulk

    def mail(self, mail: Mail, message: Claimed) -> Mail:
        """Return the mail of a message with the fields, or as it is where it gets none."""
        if not self.wants(message) or _has_own(mail.data):
            return mail
        url = self.url_of(Link(message.owner, message.id, message.recipient))
        return mail.behind(f"{FIELD}: <{url}>\r\n{FIELD}-Post: {FIELD}={ONE_CLICK}\r\n".encode())


def _has_own(data: bytes) -> bool:
    """Whether a message (its line ends CRLF) has either field already."""
    end = 0 if data.startswith(b"\r\n") else data.find(b"\r\n\r\n")
    return _OWN.search(data, 0, len(data) if end < 0 else end) is not None


@lru_cache(maxsize=16)
def _cipher(key: bytes) -> AESSIV:
    return AESSIV(hmac.digest(key, _PURPOSE, "sha512"))
