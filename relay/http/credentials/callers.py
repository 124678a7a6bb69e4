"""The caller of a call: the holder of a credential, or else an address."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Hashable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from relay.access.keys import ApiKey
from relay.access.owners import ADMINISTRATOR_ID
from relay.ip import ip_address
from relay.mailboxes.visibility import Credential
from relay.ports.peers import peer_key
from relay.ports.proxy import Network


@dataclass(frozen=True)
class Caller:
    """A credential that is valid: the administrator (no key), or the holder of a key."""

    key: ApiKey | None

    @property
    def owner_id(self) -> UUID:
        """The owner of what this caller makes."""
        return ADMINISTRATOR_ID if self.key is None else self.key.id

    @property
    def plan(self) -> str:
        """The plan of what this caller makes."""
        return "enterprise" if self.key is None else self.key.plan

    @property
    def kind(self) -> str:
        """The owner type of the mailboxes that this caller makes."""
        return "api" if self.key is None else self.key.kind

    def allows(self, scope: str) -> bool:
        """Whether the caller may do what needs `scope`."""
        return self.key is None or self.key.allows(scope)

    @property
    def credential(self) -> Credential:
        """The caller, as the store asks for it."""
        if self.key is None:
            return Credential(administrator=True)
        return Credential(owner_id=self.key.id)


def owner_of(caller: Caller | None, connection: Any, trusted: Collection[Network]) -> Hashable:
    """Return who answers for a call: the caller, or the address of one without a key."""
    return address_of(connection, trusted) if caller is None else caller.owner_id


def address_of(connection: Any, trusted: Collection[Network] = ()) -> str:
    """Return the address that a call came from, as its `peer_key`; "" when nobody knows.

    `trusted`: proxies whose last `X-Forwarded-For` is believed.
    """
    client = connection.scope.get("client")
    address = _address(client[0] if client else "")
    # The address itself, not its key: its neighbours are no proxies.
    if address is not None and any(address in network for network in trusted):
        # Some proxies add to the line that came, others (HAProxy) a line of their own below it:
        # whichever it was, only the very last is theirs, and all before it are the client's.
        said = connection.headers.getlist("X-Forwarded-For")
        if said:
            address = _address(said[-1].rpartition(",")[2].strip())
    return "" if address is None else peer_key(str(address))


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
