"""The resolver, against a server of the tests over real sockets."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from relay.checks import spf
from relay.checks.evidence import examine
from relay.checks.verdict import judge
from relay.dns.questions import Proof, Question, Status
from relay.dns.resolver import Resolver, system_servers
from relay.dns.turns import AT_ONCE, MOST_LATE, PATIENCE
from tests.checks.signing import record, rsa_key, sign
from tests.dns.server import DnsServer
from tests.eventually import eventually

ZONE = {
    ("a.example", "A"): ["192.0.2.1", "192.0.2.2"],
    ("a.example", "AAAA"): ["2001:db8::1"],
    ("a.example", "MX"): ["10 mx.example.", "0 MX2.example."],
    ("null.example", "MX"): ["0 ."],
    ("a.example", "TXT"): ['"one " "two"', '"\\233\\000"'],
    ("1.2.0.192.in-addr.arpa", "PTR"): ["a.example."],
    ("_25._tcp.mx.example", "TLSA"): ["3 1 1 " + "ab" * 32],
    ("alias.example", "CNAME"): ["alias2.example."],
    ("alias2.example", "CNAME"): ["a.example."],
    ("loop.example", "CNAME"): ["loop.example."],
    ("dangling.example", "CNAME"): ["nowhere.example."],
    ("large.example", "TXT"): ['"' + "x" * 200 + f'{n}"' for n in range(100)],
    ("swollen.example", "TXT"): ['"' + "x" * 200 + f'{n}"' for n in range(100)],
    ("cut.example", "A"): ["192.0.2.1"],
    ("noise.example", "A"): ["192.0.2.1"],
    ("guessed.example", "A"): ["192.0.2.1"],
    ("many.example", "TXT"): [f'"{n}"' for n in range(80)],
    ("foo:bar/b z.example", "A"): ["192.0.2.3"],
}


@pytest.fixture
async def server(nursery):
    return await nursery.start(DnsServer(ZONE).run)


@pytest.mark.parametrize(
    ("question", "records"),
    [
        (("A.example.", "A"), ("192.0.2.1", "192.0.2.2")),
        (("a.example", "AAAA"), ("2001:db8::1",)),
        (("a.example", "MX"), ("10 mx.example", "0 MX2.example")),
        (("null.example", "MX"), ("0 .",)),
        (("a.example", "TXT"), ("one two", "\u00e9\0")),
        (("1.2.0.192.in-addr.arpa", "PTR"), ("a.example",)),
        (("_25._tcp.mx.example", "TLSA"), ("3 1 1 " + "ab" * 32,)),
        (("alias.example", "A"), ("192.0.2.1", "192.0.2.2")),
        (("noise.example", "A"), ("192.0.2.1",)),
        (("guessed.example", "A"), ("192.0.2.1",)),
    ],
)
async def test_records(server, question, records):
    """Each type as text, names without the last dot, aliases followed, forgeries passed over."""
    answer = await Resolver([server.address]).ask(Question(*question))
    assert answer.status is Status.FOUND
    assert sorted(answer.records) == sorted(records)


@pytest.mark.parametrize(
    ("question", "status", "why"),
    [
        (("a.example", "NS"), Status.NO_DATA, ""),
        (("b.example", "A"), Status.NXDOMAIN, ""),
        (("dangling.example", "A"), Status.NXDOMAIN, ""),
        (("x..example", "A"), Status.NXDOMAIN, ""),
        (("x" * 64 + ".example", "A"), Status.NXDOMAIN, ""),
        (("b\u00fccher.example", "A"), Status.NXDOMAIN, ""),
        (("servfail.example", "A"), Status.FAILED, "SERVFAIL"),
        (("refused.example", "A"), Status.FAILED, "REFUSED"),
        (("silent.example", "A"), Status.FAILED, "no answer within 0.2 s"),
        (("loop.example", "A"), Status.FAILED, "makes no sense"),
        (("cut.example", "A"), Status.FAILED, "closed the connection"),
    ],
)
async def test_no_records(server, question, status, why):
    """What is not there is told apart from what nobody could find out."""
    answer = await Resolver([server.address], server_timeout=0.2).ask(Question(*question))
    assert (answer.status, answer.records) == (status, ())
    assert why in answer.detail


async def test_what_does_not_fit(server):
    """A long answer comes over TCP."""
    answer = await Resolver([server.address]).ask(Question("large.example", "TXT"))
    assert len(answer.records) == 100
    assert server.over_tcp == 1


async def test_a_datagram_that_is_longer_than_was_allowed(server):
    """It is not read, though it is whole: the answer comes over TCP."""
    answer = await Resolver([server.address]).ask(Question("swollen.example", "TXT"))
    assert len(answer.records) == 100
    assert server.over_tcp == 1


async def test_what_is_too_long(nursery):
    """Of what a stranger has put into the DNS no more than a bound is read."""
    zone = {("huge.example", "TXT"): ['"' + "x" * 200 + f'{n}"' for n in range(200)]}
    server = await nursery.start(DnsServer(zone).run)
    answer = await Resolver([server.address]).ask(Question("huge.example", "TXT"))
    assert (answer.status, server.over_tcp) == (Status.FAILED, 2)
    assert "too long" in answer.detail


async def test_a_connection_that_is_reset(server):
    """However soon, it is no answer."""
    server.resets = True
    for _ in range(20):
        answer = await Resolver([server.address]).ask(Question("large.example", "TXT"))
        assert answer.status is Status.FAILED


async def test_the_next_server(server, nursery):
    """A server that fails, or is not there, is passed over."""
    with trio.socket.socket(trio.socket.AF_INET, trio.socket.SOCK_DGRAM) as nobody:
        await nobody.bind(("127.0.0.1", 0))
        silent = nobody.getsockname()
        resolver = Resolver([silent, server.address], server_timeout=0.1)
        assert (await resolver.ask(Question("a.example", "A"))).status is Status.FOUND
    resolver = Resolver([silent, server.address])  # refused by the kernel, now
    assert (await resolver.ask(Question("a.example", "A"))).status is Status.FOUND
    resolver = Resolver([silent])
    assert (await resolver.ask(Question("a.example", "A"))).status is Status.FAILED


async def test_single_flight(server):
    """A hundred who ask the same ask once; one who gives up takes nothing from the others."""
    resolver = Resolver([server.address])
    server.gate = trio.Event()
    answers = []

    async def ask() -> None:
        answers.append(await resolver.ask(Question("a.example", "A")))

    async def ask_in_vain() -> None:
        with gives_up:
            await ask()

    gives_up = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask_in_vain)
        await eventually(lambda: server.held == 1, "the first asks")
        for _ in range(100):
            nursery.start_soon(ask)
        await wait_all_tasks_blocked(0.01)
        assert server.held == 1
        gives_up.cancel()
        await eventually(lambda: server.held == 2, "another one takes over")
        server.gate.set()
    assert len(answers) == 100
    assert all(answer.status is Status.FOUND for answer in answers)
    assert server.asked["a.example", "A"] == 2
    assert resolver.statistics() == (0, 1, 2)


async def test_so_many_at_once(server):
    """No more questions than allowed are under way; the others wait for a place."""
    resolver = Resolver([server.address], concurrency=5, patience=60.0)
    server.gate = trio.Event()
    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(resolver.ask, Question(f"n{number}.example", "A"))
        await eventually(lambda: server.held == 5, "five are under way")
        await wait_all_tasks_blocked(0.01)
        server.gate.set()
    assert server.most_held == 5
    assert sum(server.asked.values()) == 40


@pytest.mark.parametrize(
    ("silent", "waited"), [(127, 0.0), (200, PATIENCE), (300, 2 * PATIENCE), (383, 2 * PATIENCE)]
)
async def test_silent_questions_hold_up_another_for_a_moment(
    autojump_clock, server, silent, waited
):
    """They go on without a turn, each `AT_ONCE` of them after one `PATIENCE`, and are answered for
    themselves."""
    resolver = Resolver([server.address], ask_timeout=60.0, server_timeout=20.0)
    ends = []

    async def ask_in_vain(number: int) -> None:
        answer = await resolver.ask(Question(f"silent.{number}.example", "A"))
        assert answer.status is Status.FAILED
        ends.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        for number in range(silent):
            nursery.start_soon(ask_in_vain, number)
        await wait_all_tasks_blocked()
        began = trio.current_time()
        for name in ("a.example", "noise.example", "cut.example"):
            await resolver.ask(Question(name, "A"))
        assert trio.current_time() - began == waited
        assert not ends
    assert len(ends) == silent


async def test_behind_more_silent_questions_than_may_be_late_another_waits_for_an_end(
    autojump_clock, server
):
    """`AT_ONCE` that have a turn and `MOST_LATE` that have none any more."""
    resolver = Resolver([server.address], ask_timeout=60.0, turn_timeout=60.0, server_timeout=20.0)
    async with trio.open_nursery() as nursery:
        for number in range(AT_ONCE + MOST_LATE):
            nursery.start_soon(resolver.ask, Question(f"silent.{number}.example", "A"))
        await wait_all_tasks_blocked()
        began = trio.current_time()
        await resolver.ask(Question("a.example", "A"))
        assert trio.current_time() - began == 2 * 20.0  # the only server is tried twice


async def test_the_deadline_of_a_question(server):
    """What nobody answers within it has failed."""
    server.gate = trio.Event()
    resolver = Resolver([server.address], ask_timeout=0.2)
    answer = await resolver.ask(Question("a.example", "A"))
    assert (answer.status, answer.detail) == (Status.FAILED, "no answer in time")


async def test_the_wait_for_a_turn_does_not_count(autojump_clock, server):
    """A question has its time from its turn on; the wait before has a bound of its own, and who
    has waited in vain has learned nothing."""
    resolver = Resolver(
        [server.address],
        concurrency=1,
        patience=60.0,
        ask_timeout=10.0,
        turn_timeout=25.0,
        server_timeout=7.0,
    )
    ends: dict[str, tuple[float, Status, str]] = {}
    began = trio.current_time()

    async def ask(name: str) -> None:
        answer = await resolver.ask(Question(name, "A"))
        ends[name] = trio.current_time() - began, answer.status, answer.detail

    async with trio.open_nursery() as nursery:
        for name in ("silent.1", "silent.2", "a.example", "silent.3", "silent.4", "b.example"):
            nursery.start_soon(ask, name)
            await wait_all_tasks_blocked()
    silent = "127.0.0.1: no answer within 7 s"
    assert ends == {
        "silent.1": (10.0, Status.FAILED, silent),
        "silent.2": (17.0, Status.FAILED, silent),  # the server is known to be silent
        "a.example": (17.0, Status.FOUND, ""),
        "silent.3": (27.0, Status.FAILED, silent),
        "silent.4": (25.0, Status.FAILED, "no answer in time"),
        "b.example": (25.0, Status.FAILED, "no answer in time"),
    }
    assert (await resolver.ask(Question("b.example", "A"))).status is Status.NXDOMAIN


@contextmanager
def no_file_from(lowest: int) -> Iterator[None]:
    """No file can be opened that would have that number or a higher one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def next_file() -> int:
    """The number that the next file has that is opened."""
    with socket.socket() as sock:
        return sock.fileno()


@pytest.mark.parametrize("over", ["UDP", "TCP"])
async def test_that_no_file_can_be_opened_is_no_answer(autojump_clock, server, nursery, over):
    """It is told to who asks, and not kept: the next asks anew."""
    resolver = Resolver([server.address])
    question = Question("large.example", "TXT")
    await resolver.ask(Question("silent.example", "A"))  # so the next has one try
    before = resolver.statistics().cached
    answers = []

    async def ask() -> None:
        answers.append(await resolver.ask(question))

    lowest = next_file()
    if over == "UDP":
        with no_file_from(lowest):
            await ask()
    else:
        server.gate = trio.Event()
        async with trio.open_nursery() as asking:
            asking.start_soon(ask)
            await eventually(lambda: server.held == 1, "it was asked over UDP")
            with no_file_from(lowest):
                server.gate.set()
                await eventually(lambda: answers, "no connection can be made")
    assert [answer.status for answer in answers] == [Status.FAILED]
    assert resolver.statistics().cached == before
    assert (await resolver.ask(question)).status is Status.FOUND


@pytest.mark.skipif(not Path("/etc/resolv.conf").exists(), reason="there is none to be read")
async def test_whom_to_ask_is_not_guessed_for_want_of_files(nursery):
    """Nothing is kept of names, and nothing found out about the servers."""
    resolver = Resolver()
    with no_file_from(next_file()):
        answer = await resolver.ask(Question("a.example", "A"))
        proof = await resolver.proof()
    assert answer.status is Status.FAILED
    assert answer.detail == "/etc/resolv.conf cannot be read for now"
    assert proof == Proof(None, "silent")
    assert resolver.statistics().cached == 0


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("a.example", 60),
        ("nowhere.example", 30),
        ("servfail.example", 7),
    ],
)
async def test_the_cache(nursery, mock_clock, name, kept):
    """Answers are kept for their TTL, negative ones for the zone's, failures for a moment."""
    server = await nursery.start(DnsServer(ZONE, ttl=60, negative=30).run)
    resolver = Resolver([server.address], failed_ttl=7)
    rounds = 2 if name.startswith("servfail") else 1
    for jump, asked in ((0, 1), (kept - 1, 1), (2, 2)):
        mock_clock.jump(jump)
        await resolver.ask(Question(name, "A"))
        assert server.asked[name, "A"] == asked * rounds


async def test_the_cache_is_bounded(server):
    """By entries, and what is large is not kept at all, nor what has many small records."""
    resolver = Resolver([server.address])
    for name in ("large.example", "many.example"):
        assert (await resolver.ask(Question(name, "TXT"))).status is Status.FOUND
        assert resolver.statistics().cached == 0


class Silent:
    """Servers that say nothing; `asked` tells how many queries each has got."""

    def __init__(self, count: int) -> None:
        self._sockets = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(count)]
        for each in self._sockets:
            each.bind(("127.0.0.1", 0))
            each.setblocking(False)
        self.addresses = [each.getsockname() for each in self._sockets]

    def asked(self) -> list[int]:
        """Since the last call."""
        found = []
        for each in self._sockets:
            found.append(0)
            with suppress(BlockingIOError):
                while each.recv(4096):
                    found[-1] += 1
        return found

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()


async def test_silent_servers_cost_the_time_of_one_question(autojump_clock):
    """That nobody answers is found out once; the next questions have one try, of each in turn."""
    with Silent(3) as silent:
        resolver = Resolver(silent.addresses)
        costs = []
        for name in ("a.example", "a.example", "b.example", "c.example", "d.example"):
            began = trio.current_time()
            answer = await resolver.ask(Question(name, "A"))
            assert answer.status is Status.FAILED
            assert "no answer within 2 s" in answer.detail
            costs.append((trio.current_time() - began, silent.asked()))
        assert costs[:2] == [(10, [2, 2, 1]), (0, [0, 0, 0])]
        assert [seconds for seconds, _ in costs[2:]] == [2, 2, 2]
        assert sorted(asked for _, asked in costs[2:]) == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]


async def test_a_silent_server_is_remembered_whoever_gave_up(autojump_clock, server):
    """It is asked last from then on, until its time is over."""
    with Silent(1) as silent:
        resolver = Resolver([*silent.addresses, server.address], silent_ttl=30)
        with trio.move_on_after(3):
            await resolver.ask(Question("silent.example", "A"))  # both keep silent about it
        assert silent.asked() == [1]
        for name, jump, asked in (("a.example", 0, 0), ("b.example", 27, 0), ("c.example", 4, 1)):
            await trio.sleep(jump)
            await resolver.ask(Question(name, "A"))
            assert silent.asked() == [asked]


async def test_nobody_makes_the_servers_fail_for_others(autojump_clock, server):
    """A name that no server can answer for takes nothing from other names."""
    resolver = Resolver([server.address])
    for number in range(3):
        await resolver.ask(Question(f"silent.{number}.example", "A"))
        began = trio.current_time()
        server.zone = {(f"{number}.example", "A"): ["192.0.2.1"]}
        answer = await resolver.ask(Question(f"{number}.example", "A"))
        assert (answer.status, trio.current_time() - began) == (Status.FOUND, 0)


async def test_a_check_is_driven(server):
    """A generator's questions are answered; those after its time fail."""
    zone = dict(ZONE)
    zone["a.example", "TXT"] = ['"v=spf1 a -all"']
    server.zone = zone
    resolver = Resolver([server.address])
    outcome = await resolver.drive(spf.check("192.0.2.2", "a.example", "x@a.example"))
    assert outcome.result == "pass"
    outcome = await resolver.drive(spf.check("192.0.2.9", "a.example", "x@a.example"))
    assert outcome.result == "fail"
    server.gate = trio.Event()
    asking = spf.check("192.0.2.2", "a.example", "x@b.example")
    outcome = await resolver.drive(asking, timeout=0.2)
    assert outcome.result == "temperror"
    assert "no answer within 0.2 s" in outcome.detail


def test_system_servers():
    """As resolv.conf(5) has them."""
    text = "# a comment\nsearch x\nnameserver 192.0.2.1\nnameserver ::1\nnameserver x\nnameserver\n"
    assert system_servers(text) == (("192.0.2.1", 53), ("::1", 53))
    assert system_servers("") == (("127.0.0.1", 53),)
    assert len(system_servers("nameserver 192.0.2.1\n" * 9)) == 3


async def test_a_verdict(nursery):
    """A signed message is judged by what real servers answer, and asks each question once."""
    zone = {
        ("example.com", "TXT"): ['"v=spf1 mx -all"'],
        ("example.com", "MX"): ["10 mail.example.com."],
        ("mail.example.com", "A"): ["192.0.2.1"],
        ("s._domainkey.example.com", "TXT"): [_strings(record(rsa_key(2048)))],
        ("_dmarc.example.com", "TXT"): ['"v=DMARC1; p=reject; aspf=s; adkim=s"'],
    }
    server = await nursery.start(DnsServer(zone).run)
    resolver = Resolver([server.address])
    raw = b"From: ann@example.com\r\nTo: bob@example.net\r\nSubject: a\r\nDate: x\r\n\r\nHello.\r\n"
    evidence = examine(sign(raw, rsa_key(2048)))
    for client, wanted in (("192.0.2.1", "pass"), ("192.0.2.2", "fail")):
        verdict = await resolver.drive(
            judge(
                evidence,
                client=client,
                helo="mail.example.com",
                mail_from="ann@example.com",
                at=time.time(),
            )
        )
        assert verdict.spf.result == wanted
        assert (verdict.dkim.result, verdict.dmarc.result) == ("pass", "pass")
    assert set(server.asked.values()) == {1}


def _strings(text: str) -> str:
    """A long TXT record as a zone file has it: strings of at most 255 bytes."""
    return " ".join(f'"{text[at : at + 255]}"' for at in range(0, len(text), 255))
