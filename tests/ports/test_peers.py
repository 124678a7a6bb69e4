"""Who a peer is, who is let in where all places are taken, and how files are shared out."""

from __future__ import annotations

import itertools
import math
import time

import pytest

from relay.ports.peers import MANY, Place, PortGate, TurnedAway, peer_key, shares
from relay.ports.proxy import networks


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("no address: none", "no address: none"),
    ],
)
def test_a_peer_is_an_address_or_a_subscriber(host: str, key: str):
    """IPv6 is counted by /64, and IPv4 in IPv6 is IPv4."""
    assert peer_key(host) == key


class Connection:
    """One that is open; `idle` since a time, or busy."""

    looks = 0  # at all of them

    def __init__(self, idle: float | None = None) -> None:
        self.idle = idle
        self.ended = False

    def idle_since(self) -> float | None:
        """As it was told."""
        Connection.looks += 1
        return self.idle

    def give_way(self) -> None:
        """It ends."""
        assert not self.ended
        self.ended = True


class Port:
    """A gate, and who came through it."""

    def __init__(self, total: int, per_peer: int, **options: object) -> None:
        self.gate = PortGate("tests", total, per_peer, **options)  # type: ignore[arg-type]

    def open(
        self, host: str, *, idle: float | None = None, now: float = 0.0, privileged: bool = False
    ) -> Connection | TurnedAway:
        """Connect from a host."""
        place = self.gate.enter(host, now, privileged=privileged)
        if isinstance(place, TurnedAway):
            return place
        made = place.guest = Connection(idle)
        return made

    def fill(self, host: str, count: int, *, idle: float | None = None) -> list[Connection]:
        """Connect so often, and be let in each time."""
        made = [self.open(host, idle=idle) for _ in range(count)]
        return [one for one in made if isinstance(one, Connection)]


def test_the_gate_counts_in_all_and_by_peer():
    """Each cap has its own refusal, and who leaves makes room, once."""
    gate = PortGate("tests", 3, 2)
    first, second = gate.enter("a", 0), gate.enter("a", 0)
    assert isinstance(first, Place)
    assert isinstance(second, Place)
    assert gate.enter("a", 0) is TurnedAway.PEER
    assert isinstance(gate.enter("b", 0), Place)
    assert gate.enter("c", 0) is TurnedAway.FULL
    first.leave()
    first.leave()
    assert isinstance(gate.enter("c", 0), Place)
    assert gate.open == 3
    assert gate.enter("b", 0) is TurnedAway.FULL


def test_a_silent_peer_keeps_nobody_out():
    """However many it opens: a newcomer of another address gets a place, and so does the next."""
    port = Port(100, 100)
    silent = port.fill("192.0.2.1", 1000, idle=-math.inf)
    assert port.gate.open <= 100
    for number in range(50):
        assert isinstance(port.open(f"198.51.100.{number}"), Connection)
    assert sum(one.ended for one in silent) >= 950


def test_behind_a_proxy_all_look_alike_and_the_oldest_silent_one_gives_way():
    """The newest are spared, and so is whatever has a request in hand."""
    port = Port(10, 10)
    busy = port.fill("127.0.0.1", 4)
    silent = port.fill("127.0.0.1", 6, idle=-math.inf)
    newcomers = port.fill("127.0.0.1", 3)
    assert len(newcomers) == 3
    assert [one.ended for one in silent] == [True, True, True, False, False, False]
    assert not any(one.ended for one in busy + newcomers)


def test_where_all_are_busy_the_newcomer_is_refused():
    """Nothing that is in hand is broken off, and looking for what is not stays cheap."""
    port = Port(4096, 4096)
    busy = [one for n in range(8) for one in port.fill(f"192.0.2.{n}", 480)]
    before = time.process_time()
    for _ in range(2000):
        assert isinstance(port.open("198.51.100.1"), Connection | TurnedAway)
    spent = time.process_time() - before
    assert not any(one.ended for one in busy)
    assert spent < 5.0  # generous: looking at all of them each time would take minutes


@pytest.mark.parametrize(("busy", "each"), [(64, 1), (200, 1), (4, 17), (30, 20)])
def test_busy_peers_that_came_first_hide_no_silent_ones(busy: int, each: int):
    """A full port of silent connections opens up again, whoever else is busy there for hours."""
    port = Port(4096, 1024)
    working = [one for n in range(busy) for one in port.fill(f"192.0.2.{n}", each)]
    while port.gate.open < 4096 - port.gate.kept:
        n = port.gate.open
        assert isinstance(port.open(f"20.0.{n >> 8}.{n & 255}", idle=-math.inf), Connection)
    came = [port.open(f"30.0.{n >> 8}.{n & 255}") for n in range(1000)]
    # Each refusal has looked at some of the busy; who tries again a few times is let in.
    refused = [n for n, one in enumerate(came) if isinstance(one, TurnedAway)]
    assert len(refused) <= busy * each // 16 + 1
    assert all(n <= len(refused) for n in refused)
    assert not any(one.ended for one in working)


def test_refusing_costs_the_same_however_many_peers_there_are():
    """What is counted is how many connections are looked at, of a few hundred or of 20,000."""
    for total in (500, 20_000):
        port = Port(total, 16)
        while port.gate.open < total - port.gate.kept:
            n = port.gate.open
            port.open(f"20.0.{n >> 8}.{n & 255}")
        before = Connection.looks
        assert port.open("192.0.2.1") is TurnedAway.FULL
        assert Connection.looks - before <= 64


def test_the_peer_with_the_most_gives_way_first():
    """Its silent connections wait for nothing; those of a peer with few have their patience."""
    port = Port(100, 100, patience=10.0)
    modest = port.fill("192.0.2.2", 2, idle=0.0)
    greedy = port.fill("192.0.2.1", 92, idle=0.0)
    assert isinstance(port.open("198.51.100.1", now=1.0), Connection)
    assert greedy[0].ended
    assert not any(one.ended for one in modest)


def test_among_equals_a_connection_gives_way_after_its_patience():
    """A full port of ordinary peers refuses, as it did; what has long been silent goes."""
    port = Port(MANY, MANY, patience=10.0)
    few = [one for n in range(MANY) for one in port.fill(f"127.0.0.{n + 1}", 1, idle=0.0)]
    assert port.open("127.0.0.100", now=5.0) is TurnedAway.FULL
    assert isinstance(port.open("127.0.0.100", now=10.0), Connection)
    assert sum(one.ended for one in few) == 1


def test_one_that_comes_back_has_nobody_give_way():
    """No peer has more than it may, and not even who gives way at once has to."""
    port = Port(total=2, per_peer=1)
    silent = port.open("192.0.2.1", idle=-math.inf)
    assert port.gate.enter("192.0.2.1", None) is TurnedAway.PEER
    assert isinstance(port.gate.enter("192.0.2.2", None), Place)
    assert port.gate.enter("192.0.2.3", None) is TurnedAway.FULL
    assert isinstance(silent, Connection)
    assert not silent.ended


def test_places_are_kept_for_this_machine_and_the_administrator():
    """Strangers, together, never have the last; neither has one address of this machine."""
    port = Port(160, 160, trusted=networks(["10.0.0.0/24", "2001:db8:ffff::1"]))
    assert port.gate.kept == 10
    strangers = [port.open(f"2001:db8:0:{n:x}::1") for n in range(160)]
    assert sum(isinstance(one, Connection) for one in strangers) == 150
    near = ("127.0.0.1", "::1", "10.0.0.1", "2001:db8:ffff::1")
    assert all(isinstance(port.open(host), Connection) for host in near)
    assert port.open("198.51.100.1") is TurnedAway.FULL
    assert isinstance(port.open("198.51.100.1", privileged=True), Connection)
    local = Port(160, 10)
    assert len(local.fill("127.0.0.2", 160)) == 150
    assert len(local.fill("127.0.0.1", 10)) == 10


def test_a_subscriber_has_one_share_however_many_addresses():
    """A /64 is one peer, and an IPv4 address is one however it is written."""
    port = Port(100, 3)
    made = [port.open(f"2001:db8:1:2::{n:x}") for n in range(1, 6)]
    assert made[3:] == [TurnedAway.PEER, TurnedAway.PEER]
    mixed = [port.open(host) for host in ("192.0.2.1", "::ffff:192.0.2.1") * 2]
    assert mixed[3] is TurnedAway.PEER


def test_nothing_is_left_of_those_who_have_gone():
    """Memory follows what is open."""
    gate = PortGate("tests", 1000, 10)
    for number in range(5000):
        place = gate.enter(f"2001:db8:{number:x}::1", 0)
        assert isinstance(place, Place)
        place.leave()
    assert gate.open == 0
    assert gate.remembered == 0


WANTED = {"http": 4096, "smtp": 1000, "push": 4096, "receive": 50_000}


def test_files_are_shared_out_and_some_are_left():
    """Where few may be open the ports shrink; ten thousand devices fit into 20,000."""
    for open_files in (64, 256, 1024, 20_000, 2**20):
        given = shares(open_files, 150, WANTED)
        assert sum(given.values()) <= open_files - min(150, open_files // 2)
        assert all(0 < given[port] <= WANTED[port] for port in WANTED)
    assert shares(20_000, 150, WANTED)["receive"] >= 10_000
    assert shares(1024, 150, WANTED) == {"http": 194, "smtp": 194, "push": 97, "receive": 389}
    assert shares(-1, 150, WANTED) == shares(2**20, 150, WANTED) == WANTED


def test_what_one_port_does_not_want_goes_to_the_others():
    """In whatever order they stand."""
    for ports in itertools.permutations(["http", "smtp", "push"]):
        wanted = {port: 10 if port == "smtp" else 10_000 for port in ports}
        assert shares(1000, 100, wanted) == {"http": 593, "smtp": 10, "push": 297}
