"""The rule of every port: who a peer is, and how many connections it may have open.

`peer_key` names a peer.  A `PortGate` counts the open connections of one port, by peer and in all;
each has a `Place` there for as long as it is open.  `shares` divides the file descriptors of the
process over its ports.

Promises
  * No peer has more places than a peer may have, and all together no more than there are.
  * Some places are kept: only this machine itself, the proxies that were named and the
    administrator get them, and no single address of this machine gets all of those.
  * Whoever keeps us waiting with nothing in hand locks nobody out.  When a port is full, a
    connection that has sent no complete request, command or handshake gives way to the newcomer:
    first one of the peer that has the most, of its own the oldest.  So it holds too where every
    peer looks alike, as behind a proxy.  Those looked at in vain are looked at last from then on,
    and some looks go round all places, so busy ones hide no silent ones for long.
  * Letting in, refusing and leaving take constant time, however many connections are open; what a
    flood can make the gate look at is bounded.

Fails: by refusing (a `TurnedAway`), never by raising.

Why not caps alone: a silent connection costs its peer nothing, and a cap low enough that a few
hundred addresses cannot fill a port is too low for one honest office behind one address.

No I/O; times are seconds of any clock that only rises.
"""

from __future__ import annotations

import enum
import ipaddress
import math
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from itertools import islice
from typing import Protocol

from prometheus_client import Counter

from relay.ip import ip_address
from relay.metrics import registry
from relay.ports.proxy import Network

MANY = 8
"""How many places more than the newcomer a peer has whose silent connections wait for nothing."""
_LOOKS = 64  # places looked at before a newcomer is refused
_LOOKS_AT_ONE = 16  # of them, of one peer
_LOOKS_ROUND = 16  # of them, at all places in turn, whosever they are
_KEPT = 16  # one place in so many is kept …
_KEPT_MOST = 64  # … and no more than these

_LOCAL_6 = "::/64"

_TURNED_AWAY = Counter(
    "relay_connections_turned_away",
    "Connections refused or ended so that another could be had: why is peer (too many of one"
    " peer), full (no place left) or idle (it gave its place to another).",
    ["port", "why"],
    registry=registry,
)


def peer_key(host: str) -> str:
    """Return what a peer is counted by: its IPv4 address, or its IPv6 /64.

    One subscriber commonly has a whole /64, so a single IPv6 address identifies nobody.
    """
    if ":" not in host:
        return host
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 4:
        return str(address)
    return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))


def is_this_machine(key: str) -> bool:
    """Tell whether a `peer_key` is one of this machine's own addresses of loopback."""
    return key.startswith("127.") or key == _LOCAL_6


class TurnedAway(enum.Enum):
    """Why a connection is not let in."""

    PEER = "peer"
    """Its peer has as many as one may have."""
    FULL = "full"
    """The port has no place left for anybody like the peer."""
    PAUSED = "paused"
    """The port lets nobody in now; this is its owner's word, no gate's."""


class Guest(Protocol):
    """An open connection, as its gate sees it."""

    def idle_since(self) -> float | None:
        """Since when it keeps us waiting with nothing in hand; None: something is in hand.

        Minus infinity: since it came, so it gives way without any patience.
        """

    def give_way(self) -> None:
        """End now; the place is another's already."""


class Place:
    """One open connection's; `leave` it once, or more often."""

    __slots__ = ("_gate", "_peer", "guest")

    def __init__(self, gate: PortGate, peer: _Peer) -> None:
        self._gate: PortGate | None = gate
        self._peer = peer
        self.guest: Guest | None = None
        """The connection in this place; None: it does not give way."""

    def leave(self) -> None:
        """Give the place back."""
        gate, self._gate, self.guest = self._gate, None, None
        if gate is not None:
            gate._leave(self, self._peer)


class _Peer:
    __slots__ = ("key", "local", "places")

    def __init__(self, key: str, local: bool) -> None:
        self.key = key
        self.local = local
        # The oldest first, but for those looked at in vain.  Ordered as a linked list: the first of
        # a plain dict is found by walking over all that was deleted before it.
        self.places: OrderedDict[Place, None] = OrderedDict()


class PortGate:
    """Counts the open connections of one port and refuses those above a cap."""

    def __init__(
        self,
        port: str,
        total: int,
        per_peer: int,
        *,
        local_per_peer: int | None = None,
        patience: float = 0.0,
        trusted: Collection[Network] = (),
    ) -> None:
        """`port` names it in the metrics.

        `local_per_peer`: places of one address of this machine or one of the `trusted` (proxies);
        None: all but those that are kept.  `patience`: seconds that a connection may be idle
        before it gives way to whoever comes (`Guest.idle_since`).
        """
        self.total = total
        self.kept = min(total // _KEPT, _KEPT_MOST)
        """Places that strangers never get."""
        self.per_peer = per_peer
        self.local_per_peer = (
            max(1, total - self.kept) if local_per_peer is None else local_per_peer
        )
        self.open = 0
        self._strangers = 0
        self._patience = patience
        self._trusted = tuple(trusted)
        self._peers: dict[str, _Peer] = {}
        # Peers by how many places they have, and all places; those looked at in vain come last.
        self._by_size: dict[int, OrderedDict[_Peer, None]] = {}
        self._places: OrderedDict[Place, None] = OrderedDict()
        self._away = {why: _TURNED_AWAY.labels(port, why) for why in ("peer", "full", "idle")}

    @property
    def remembered(self) -> int:
        """Entries about open connections and their peers; 0 when nobody is there."""
        return len(self._peers) + len(self._by_size) + len(self._places)

    def _trusts(self, key: str) -> bool:
        """Whether any of a peer's addresses is a trusted one."""
        if not self._trusted:
            return False
        try:
            peers = ipaddress.ip_network(key)
        except ValueError:
            return False
        return any(network.overlaps(peers) for network in self._trusted)

    def enter(
        self, host: str, now: float | None, *, privileged: bool = False
    ) -> Place | TurnedAway:
        """Let a connection of `host` (an address, or a `peer_key`) in, or say why not.

        `now`: None: nobody gives way for it.  `privileged`: it is the administrator's, for whom
        every place is good.
        """
        key = peer_key(host)
        peer = self._peers.get(key)
        if peer is None:
            local = is_this_machine(key) or self._trusts(key)
            peer = _Peer(key, local)
        mine = len(peer.places)
        if privileged:
            cap, strange = self.total, False
        else:
            cap = self.local_per_peer if peer.local else self.per_peer
            strange = not peer.local
        if mine >= cap:
            if now is None or not self._make_room_of(peer, _LOOKS, now, self._patience):
                self._away["peer"].inc()
                return TurnedAway.PEER
        elif self.open >= self.total or (strange and self._strangers >= self.total - self.kept):
            only_strangers = self.open < self.total
            if now is None or not self._make_room(mine, now, only_strangers=only_strangers):
                self._away["full"].inc()
                return TurnedAway.FULL
        place = Place(self, peer)
        self._resize(peer, len(peer.places), len(peer.places) + 1)
        peer.places[place] = self._places[place] = None
        self.open += 1
        self._strangers += not peer.local
        return place

    def _leave(self, place: Place, peer: _Peer) -> None:
        del peer.places[place], self._places[place]
        self._resize(peer, len(peer.places) + 1, len(peer.places))
        self.open -= 1
        self._strangers -= not peer.local

    def _resize(self, peer: _Peer, before: int, after: int) -> None:
        if before:
            same = self._by_size[before]
            del same[peer]
            if not same:
                del self._by_size[before]
        if after:
            self._by_size.setdefault(after, OrderedDict())[peer] = None
            self._peers[peer.key] = peer
        else:
            del self._peers[peer.key]

    def _make_room(self, mine: int, now: float, *, only_strangers: bool) -> bool:
        """Free a place, if there is one to free; the newcomer's peer has `mine`."""
        looks = _LOOKS - _LOOKS_ROUND
        for size, peer in self._largest_first(looks):
            if looks <= 0:
                break
            if only_strangers and peer.local:
                looks -= 1
            else:
                patience = self._patience_with(size, mine)
                if self._make_room_of(peer, min(looks, _LOOKS_AT_ONE), now, patience):
                    return True
                looks -= min(size, _LOOKS_AT_ONE)
            self._by_size[size].move_to_end(peer)
        # The largest may all be busy, for hours: so that they hide nobody, go round the others too.
        for place in list(islice(self._places, _LOOKS_ROUND)):
            peer = place._peer
            patience = self._patience_with(len(peer.places), mine)
            if not (only_strangers and peer.local) and self._free(place, now, patience):
                return True
            self._places.move_to_end(place)
        return False

    def _patience_with(self, size: int, mine: int) -> float:
        return 0.0 if size >= mine + MANY else self._patience

    def _largest_first(self, most: int) -> Iterator[tuple[int, _Peer]]:
        for size in sorted(self._by_size, reverse=True):
            for peer in list(islice(self._by_size[size], most)):
                yield size, peer

    def _make_room_of(self, peer: _Peer, looks: int, now: float, patience: float) -> bool:
        """Free one of a peer's places: that of the oldest connection that may give way."""
        for place in list(islice(peer.places, looks)):
            if self._free(place, now, patience):
                return True
            # Behind the others, so that the next look is at one that was not looked at.
            peer.places.move_to_end(place)
        return False

    def _free(self, place: Place, now: float, patience: float) -> bool:
        """Free a place if who sits there may give way."""
        guest = place.guest
        since = None if guest is None else guest.idle_since()
        if guest is None or since is None or now - since < patience:
            return False
        place.leave()
        self._away["idle"].inc()
        guest.give_way()
        return True


WEIGHTS = {"http": 2, "smtp": 2, "lmtp": 1, "submission": 1, "pop3": 1, "push": 1, "receive": 4}
"""What part of the file descriptors each port gets, where there are fewer than all would take."""


def shares(open_files: int, needed: int, wanted: Mapping[str, int]) -> dict[str, int]:
    """Divide what a process may open over its ports: how many connections each may have.

    `open_files`: the limit (below 0: none); `needed`: files that are no connection of a port, of
    which at most half the limit is believed; `wanted`: by port, more than which none gets.
    What one port does not want goes to the others.
    """
    left = math.inf if open_files < 0 else open_files - min(needed, open_files // 2)
    given: dict[str, int] = {}
    # Who wants least for its weight is served first; so what is over is known by those who follow.
    ports = sorted(wanted, key=lambda port: wanted[port] / WEIGHTS[port])
    for place, port in enumerate(ports):
        weight = sum(WEIGHTS[other] for other in ports[place:])
        fair = left if math.isinf(left) else left * WEIGHTS[port] // weight
        given[port] = max(1, int(min(wanted[port], fair)))
        left -= given[port]
    return given
