"""The whole path: from SMTP until a message is listed, with its subject and its code.

Mail of four kinds (`mail_kinds`) comes in on schedule (`open_loop`: 500, 1,500 and 3,000 a second,
the last for 20 s, whether or not earlier mail was answered) and as a burst (8,000 as fast as 20
connections go), for one mailbox and spread over 1,000.  Measured until the last message can be
listed and everything is quiet again.  Columns:

- `accepted/s`: answered 250, from the first that was due to the last answer.
- `readable/s`: the pace at which messages became readable, from the first to the last; of a burst
  from its beginning, for there the whole is what one waits for.
- `p50`, `p99`: from a message's own 250 until it is readable, 0 where that comes before; `in 1 s`:
  the share for which it was a second at most; `p99 from due`: from the instant at which it should
  have been sent, so that accepting slowly is seen as well.
- `all after`: seconds from the beginning until the last is readable.
- `CPU`: milliseconds a message of all processes of the peer, its PostgreSQL apart, until quiet.
- `lost`: answered 250 and never listed, or listed with another code than it carries; `refused`: not
  answered 250, whether refused or not sent in time.

Peers, each in a process of its own, in interleaved rounds; medians (of `lost` and `refused`, sums):
- `relay`: the whole program as `relay up` runs it, on a PostgreSQL of the bench; one address may
  have as many connections as the generator needs.
- `aiosmtpd + email`: aiosmtpd whose handler parses with `email` (policy default: subject, text, a
  regular expression for the code) and then INSERTs and commits through asyncpg, before its 250; it
  stands for what one writes oneself.  On the same PostgreSQL.
- `MailDev`, `Sendria` (`catchers`): installed on first use into the user's cache, from lock files
  in this folder (npm; an environment of its own); left out, with the reason, where that fails.
A peer is measured at a rate only if in that round it kept the pace of the one below, and with less
mail in a burst, Sendria least: it would take minutes otherwise, and the pace is the same.

When is it readable?  For what is in PostgreSQL: as soon as any other session sees the row, for a
list is a query.  Asking for the rows again and again would slow down what is measured.  Instead one
connection takes a snapshot (`pg_current_snapshot()`, no table) every 5 ms and notes when it had it;
afterwards each row's transaction is looked for in them: the row could be read from the first
snapshot on that sees it.  So the time is never early, and late by 5 ms at most plus the way.  It
takes that rows are written in a plain transaction, no savepoint, and not written again.
`python -m tests.bench.readable check` holds it against polling the list over HTTP, and against the
mailbox's event stream.  The catchers announce what can be listed on a WebSocket (`catchers`).
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import collections
import functools
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

import psycopg
import trio

from tests.bench.catchers import Catcher, MailDev, Sendria
from tests.bench.ingest import asyncpg_pool
from tests.bench.mail_kinds import KINDS, kind, number_of
from tests.bench.open_loop import CONNECTIONS, Load, Sent, recipient, send
from tests.bench.proc import cpu_seconds_of_all
from tests.cached import Missing
from tests.db.cluster import Cluster, binaries
from tests.relay_process import RelayProcess

SECONDS = 3  # of sending at a rate,
LONG = {3000: 20}  # and at the one that is to be kept up
RATES = (500, 1500, 3000)
MAILBOXES = (1, 1000)
BURST = 8000
OTHERS_RATE = 500  # of the kinds that are not plain
OTHERS_BURST = {"newsletter": 2000, "attachment": 500, "corpus": 2000}
PEERS = ("relay", "aiosmtpd + email", "MailDev", "Sendria")
SHORTER = {  # seconds of sending, and their burst
    "aiosmtpd + email": (SECONDS, 4000),
    "MailDev": (SECONDS, 4000),
    "Sendria": (1, 1000),
}
WARM_UP = Load("plain", 1, 0, 300)
KEPT = 0.95  # of a rate is keeping its pace

_EVERY = 0.005  # s; between two snapshots
_STUCK = 15.0  # s without one more that is listed, after which the rest is lost
_QUIET = 0.05  # CPU seconds in half a second,
_CALM = 6  # times in a row: chunks for searches are made 2 s after the last mail
_QUIET_WITHIN = 60.0  # s
_POOL = 10  # connections of the asyncpg application


class Watch(Protocol):
    """What is listed, and since when."""

    def count(self) -> int:
        """How many are, now; cheap."""


class Peer(Protocol):
    """One that is measured."""

    name: str
    port: int

    def reset(self) -> None:
        """Forget all mail."""

    def cpu(self) -> tuple[float, float]:
        """CPU seconds so far, and those of its PostgreSQL."""

    def watch(self) -> Any:
        """A context in which it is watched (`Watch`)."""

    def listed(self, watch: Any) -> dict[int, tuple[float, str | None]]:
        """Since when each message is listed, by its number, and with which code."""

    def close(self) -> None:
        """End it."""


# ---------------------------------------------------------------------------- the peers


class Snapshots(threading.Thread):
    """Notes which transactions a new query would see, every few milliseconds."""

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__(daemon=True)
        self._dsn, self._count = dsn, f"SELECT count(*) FROM {table}"
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._over = threading.Event()
        self._taken: list[tuple[float, str]] = []
        self.start()

    def run(self) -> None:
        """Take them until closed: without a cursor, at half its cost, for it is done so often."""
        with self._connection as connection:
            connection.pgconn.prepare(b"look", b"SELECT pg_current_snapshot()::text")
            while not self._over.wait(_EVERY):
                text = connection.pgconn.exec_prepared(b"look", ()).get_value(0, 0)
                assert text is not None
                self._taken.append((time.monotonic(), text.decode()))

    def count(self) -> int:
        """How many rows the table has."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(self._count).fetchone()
        assert row is not None
        return int(row[0])

    def close(self) -> None:
        """Take no more."""
        self._over.set()
        self.join(10)

    def seen(self, transactions: Iterable[int]) -> dict[int, float]:
        """Since when each transaction's rows can be read."""
        taken = [(at, *_parsed(text)) for at, text in self._taken]
        found = {}
        for one in set(transactions):
            # Once visible, visible ever after: the first snapshot that sees it.
            at = bisect.bisect_left(taken, True, key=lambda t: one < t[1] and one not in t[2])
            found[one] = taken[at][0]
        return found


def _parsed(snapshot: str) -> tuple[int, frozenset[int]]:
    """The first transaction that it does not see, and those before that were under way."""
    _, most, under_way = snapshot.split(":")
    return int(most), frozenset(map(int, filter(None, under_way.split(","))))


class Stored:
    """A peer whose mail is in a table of the bench's PostgreSQL."""

    name: str
    port: int
    pid: int
    _table: str
    _truncate: str

    def __init__(self, cluster: Cluster, database: str) -> None:
        self._cluster, self._database = cluster, database
        self._dsn = cluster.dsn(database)

    def cpu(self) -> tuple[float, float]:
        assert self._cluster.process is not None
        return cpu_seconds_of_all(self.pid), cpu_seconds_of_all(self._cluster.process.pid)

    def reset(self) -> None:
        self._cluster.admin(self._truncate, self._database)
        self._cluster.admin("CHECKPOINT")

    @contextmanager
    def watch(self) -> Iterator[Snapshots]:
        snapshots = Snapshots(self._dsn, self._table)
        try:
            yield snapshots
        finally:
            snapshots.close()

    def listed(self, watch: Snapshots) -> dict[int, tuple[float, str | None]]:
        with psycopg.connect(self._dsn) as connection:
            rows = connection.execute(self._read).fetchall()
        seen = watch.seen(row[0] for row in rows)
        numbered = ((number_of(row[1]), row) for row in rows)
        return {n: (seen[row[0]], row[2]) for n, row in numbered if n is not None}

    @property
    def _read(self) -> str:
        return f"SELECT xmin::text::bigint, subject, {self._code} FROM {self._table}"

    _code = "code"


class Relay(Stored):
    """`relay up`."""

    name = "relay"
    _table = "relay.summaries"
    _code = "otp"
    _truncate = "TRUNCATE relay.messages, relay.unsummarised CASCADE"

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        from relay.db.migrate import migrate

        cluster.admin("CREATE DATABASE whole")
        super().__init__(cluster, "whole")
        trio.run(functools.partial(migrate, self._dsn))
        boxes = ",".join(f"('{recipient(n, 1000)}', now() + '1 day')" for n in range(1000))
        cluster.admin(f"INSERT INTO relay.mailboxes (address, expires_at) VALUES {boxes}", "whole")
        room = str(CONNECTIONS + 50)
        self.process = RelayProcess(
            directory / "relay",
            env={
                "RELAY_DATABASE__URL": self._dsn,
                "RELAY_SMTP__MAX_CONNECTIONS": room,
                "RELAY_SMTP__MAX_CONNECTIONS_PER_PEER": room,
            },
        )
        self.process.start()
        self.pid, self.port = self.process.pid, self.process.smtp[1]

    def close(self) -> None:
        self.process.stop()


class Application(Stored):
    """aiosmtpd, `email`, asyncpg."""

    name = "aiosmtpd + email"
    _table = "mail"
    _truncate = "TRUNCATE mail"

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        cluster.admin("CREATE DATABASE application")
        super().__init__(cluster, "application")
        cluster.admin(
            "CREATE TABLE mail (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
            "received_at timestamptz NOT NULL DEFAULT now(), sender text NOT NULL, "
            "recipient text NOT NULL, subject text NOT NULL, body text, code text, "
            "raw bytea NOT NULL)",
            "application",
        )
        cluster.admin("CREATE INDEX ON mail (recipient, received_at)", "application")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.bench.readable", "serve", self._dsn],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.pid, self.port = self.process.pid, int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class Caught:
    """A catcher as a peer."""

    def __init__(self, catcher: Catcher) -> None:
        self._catcher = catcher
        self.name, self.port = catcher.name, catcher.port
        self.reset, self.close, self.watch = catcher.reset, catcher.close, catcher.watch

    def cpu(self) -> tuple[float, float]:
        return cpu_seconds_of_all(self._catcher.process.pid), 0.0

    def listed(self, watch: Any) -> dict[int, tuple[float, str | None]]:
        return {number: (at, None) for number, at in self._catcher.listed(watch.heard).items()}


def serve(dsn: str) -> None:
    """Be the application, until killed."""
    import logging
    from email import message_from_bytes, policy
    from email.message import EmailMessage

    from aiosmtpd.smtp import SMTP

    logging.getLogger("mail.log").setLevel(logging.ERROR)
    pattern = re.compile(r"\bcode (?:is )?([0-9]{6})\b", re.IGNORECASE)

    class Handler:
        def __init__(self, pool: Any) -> None:
            self.pool = pool

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            message = message_from_bytes(envelope.content, policy=policy.default)
            assert isinstance(message, EmailMessage)
            part = message.get_body(("plain", "html"))
            body = part.get_content() if part is not None else ""
            code = pattern.search(body)
            await self.pool.execute(
                "INSERT INTO mail (sender, recipient, subject, body, code, raw) "
                "VALUES ($1, $2, $3, $4, $5, $6)",
                *(str(message["From"]), envelope.rcpt_tos[0], str(message["Subject"])),
                *(body, code[1] if code else None, envelope.content),
            )
            return "250 OK"

    async def main() -> None:
        pool = await asyncpg_pool(dsn, _POOL)
        loop = asyncio.get_running_loop()
        handler = Handler(pool)
        server = await loop.create_server(
            lambda: SMTP(handler, hostname="bench", loop=loop), "127.0.0.1", 0, backlog=512
        )
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(main())


# ---------------------------------------------------------------------------- the measurement


def measure(peer: Peer, load: Load) -> dict[str, float]:
    """One load on one peer; what it did."""
    rest(peer)
    peer.reset()
    before = peer.cpu()
    with peer.watch() as watch:
        took = load.messages / load.rate if load.rate else 0.0
        sent = send(peer.port, load, limit=2 * took + 30)
        until_listed(watch, len(sent.answered))
        rest(peer)
        after = peer.cpu()
    if sent.refused:
        said, times = collections.Counter(sent.refused.values()).most_common(1)[0]
        print(f"{peer.name} refused {len(sent.refused):,}, {times:,} of them with: {said}")
    listed = peer.listed(watch)
    peer.reset()  # or what it does when it is long quiet would fall into the next one's time
    checks = peer.name == "relay"
    letter = kind(load.kind)
    good = {
        number: at
        for number, (at, code) in listed.items()
        if not checks or code == letter(number).code
    }
    return figures(load, sent, good) | {
        "CPU ms": (after[0] - before[0]) / max(1, len(sent.answered)) * 1e3,
        "PostgreSQL ms": (after[1] - before[1]) / max(1, len(sent.answered)) * 1e3,
        "generator ms": sent.cpu / load.messages * 1e3,
    }


def figures(load: Load, sent: Sent, listed: Mapping[int, float]) -> dict[str, float]:
    """What the columns say of the times."""
    began, accepted = sent.due[0], sent.answered
    readable = sorted(at for number, at in listed.items() if number in accepted)
    waits = sorted(max(0.0, listed[n] - at) for n, at in accepted.items() if n in listed)
    from_due = sorted(listed[n] - sent.due[n] for n in accepted if n in listed)
    assert readable, f"nothing can be read: {list(sent.refused.items())[:3]}"
    since = readable[0] if load.rate else began
    return {
        "accepted/s": len(accepted) / (max(accepted.values()) - began),
        "readable/s": len(readable) / max(1e-9, readable[-1] - since),
        "p50 ms": _at(waits, 0.5) * 1e3,
        "p99 ms": _at(waits, 0.99) * 1e3,
        "in 1 s %": 100 * bisect.bisect_right(waits, 1.0) / len(accepted),
        "p99 from due ms": _at(from_due, 0.99) * 1e3,
        "all after s": readable[-1] - began,
        "lost": len(accepted) - len(waits),
        "refused": len(sent.refused) + sent.unsent,
    }


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def until_listed(watch: Watch, wanted: int) -> None:
    """Wait until so many are listed, or none more for long."""
    last, since = -1, time.monotonic()
    while (now := watch.count()) < wanted:
        if now != last:
            last, since = now, time.monotonic()
        elif time.monotonic() - since > _STUCK:
            return
        time.sleep(0.2)


def rest(peer: Peer) -> None:
    """Wait until the peer and its PostgreSQL have nothing left to do."""
    deadline, calm = time.monotonic() + _QUIET_WITHIN, 0
    while calm < _CALM and time.monotonic() < deadline:
        before = sum(peer.cpu())
        time.sleep(0.5)
        calm = calm + 1 if sum(peer.cpu()) - before < _QUIET else 0


def loads(
    name: str,
    kinds: Sequence[str] = KINDS,
    rates: Sequence[int] = RATES,
    mailboxes: Sequence[int] = MAILBOXES,
) -> list[Load]:
    """What a peer is measured with: plain mail in every way, the others once, peers plain alone."""
    found = []
    seconds, burst = SHORTER.get(name, (SECONDS, BURST))
    for one in kinds:
        if one == "plain":
            for boxes in mailboxes if name == "relay" else mailboxes[-1:]:
                longer = LONG if name == "relay" else {}
                found += [
                    Load(one, boxes, rate, rate * longer.get(rate, seconds)) for rate in rates
                ]
                found.append(Load(one, boxes, 0, burst))
        elif name == "relay":
            rate, boxes = OTHERS_RATE, mailboxes[-1]
            found.append(Load(one, boxes, rate, rate * SECONDS))
            found.append(Load(one, boxes, 0, OTHERS_BURST[one]))
    return found


def run(
    rounds: int = 3,
    *,
    peers: Sequence[str] = PEERS,
    kinds: Sequence[str] = KINDS,
    rates: Sequence[int] = RATES,
    mailboxes: Sequence[int] = MAILBOXES,
) -> dict[str, Any]:
    """Measure each peer with each load `rounds` times, interleaved."""
    found: dict[tuple[str, Load], list[dict[str, float]]] = {}
    missing: dict[str, str] = {}
    with ExitStack() as stack:
        running = []
        for name, peer in _started(stack, peers):
            if isinstance(peer, Missing):
                missing[name] = str(peer)
                print(f"without {name}: {peer}")
            else:
                measure(peer, WARM_UP)
                running.append(peer)
        began = time.monotonic()
        asked = {peer.name: loads(peer.name, kinds, rates, mailboxes) for peer in running}
        for number in range(rounds):
            for load in dict.fromkeys(load for those in asked.values() for load in those):
                for peer in running:
                    if load in asked[peer.name] and _keeps_pace(found, peer.name, load):
                        taken = measure(peer, load)
                        found.setdefault((peer.name, load), []).append(taken)
                        pace, p99 = taken["readable/s"], taken["p99 ms"]
                        print(
                            f"{time.monotonic() - began:4.0f} s, round {number + 1}, {peer.name}: "
                            f"{load.label}: {pace:,.0f} readable/s, p99 {p99:,.0f} ms",
                            flush=True,
                        )
    return _report(found, missing)


def _keeps_pace(
    found: Mapping[tuple[str, Load], list[dict[str, float]]], name: str, load: Load
) -> bool:
    """Whether a peer kept the pace of the rates below, when they were measured last."""
    return name == "relay" or all(
        taken[-1]["readable/s"] >= KEPT * other.rate
        for (who, other), taken in found.items()
        if who == name and 0 < other.rate < load.rate
    )


def _started(stack: ExitStack, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """The peers, running until the stack ends; for one that cannot be run, why."""
    directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="relay-bench-")))
    bin_dir = binaries(18)
    assert bin_dir is not None
    # The settings that a modest real server has.
    cluster = Cluster(bin_dir, fsync=True, settings={"shared_buffers": "256MB"})
    stack.callback(cluster.remove)
    cluster.start()
    make: dict[str, Any] = {
        "relay": lambda: Relay(cluster, directory),
        "aiosmtpd + email": lambda: Application(cluster, directory),
        "MailDev": lambda: Caught(MailDev(directory)),
        "Sendria": lambda: Caught(Sendria(directory)),
    }
    for name in names:
        try:
            peer = make[name]()
        except Missing as reason:
            yield name, reason
        else:
            stack.callback(peer.close)
            yield name, peer


def _report(
    found: Mapping[tuple[str, Load], list[dict[str, float]]], missing: Mapping[str, str]
) -> dict[str, Any]:
    results: dict[str, dict[str, float]] = {}
    for (name, load), taken in found.items():
        results[f"{name}: {load.label}"] = {
            column: sum(one[column] for one in taken)
            if column in {"lost", "refused"}
            else round(statistics.median(one[column] for one in taken), 3)
            for column in taken[0]
        }
    return {
        "name": "from SMTP until listed with subject and code",
        "unit": "messages/s",
        "results": results,
        "missing": dict(missing),
        "ratios": _ratios(found),
    }


def _ratios(found: Mapping[tuple[str, Load], list[dict[str, float]]]) -> dict[str, Any]:
    def median(name: str, load: Load, column: str) -> float:
        return statistics.median(one[column] for one in found[name, load])

    ratios: dict[str, Any] = {}
    for name, load in found:
        if name != "relay" or load.kind != "plain":
            continue
        if load.rate == 3000:
            ratios[f"{load.label}: p99 of 250 until readable, s"] = {
                "value": median(name, load, "p99 ms") / 1e3,
                "at_most": 1.0,
            }
            ratios[f"{load.label}: readable/s"] = {
                "value": median(name, load, "readable/s"),
                "required": 2850,  # the last one's delay counts as well
                "aim": 3000,
            }
        elif not load.rate:
            ratios[f"{load.label}: all readable after, s"] = {
                "value": median(name, load, "all after s"),
                "at_most": 4.0,
            }
            for peer, required in (("MailDev", 3.0), ("Sendria", 4.0)):
                theirs = [one for one in found if one[0] == peer and not one[1].rate]
                for _, other in (one for one in theirs if one[1].mailboxes == load.mailboxes):
                    ratios[f"burst: relay / {peer}, readable/s"] = {
                        "value": statistics.median(
                            ours["readable/s"] / its["readable/s"]
                            for ours, its in zip(found[name, load], found[peer, other], strict=True)
                        ),
                        "required": required,
                    }
    lost = sum(
        one["lost"] for (name, _), taken in found.items() if name == "relay" for one in taken
    )
    refused = sum(
        one["refused"] for (name, _), taken in found.items() if name == "relay" for one in taken
    )
    return ratios | {
        "lost or wrong": {"value": lost, "at_most": 0},
        "refused or not sent in time": {"value": refused, "at_most": 0},
    }


# ---------------------------------------------------------------------------- the cross-check


def check(rate: int = 200, seconds: int = 10) -> dict[str, Any]:
    """How much later than `Snapshots` says a message is seen over HTTP, milliseconds."""
    load = Load("plain", 1, rate, rate * seconds)
    with ExitStack() as stack:
        ((_, relay),) = _started(stack, ["relay"])
        host = relay.process.run["http"].removeprefix("http://")
        headers = {"Authorization": f"Bearer {relay.process.run['admin_token']}"}
        base = f"/api/v1/mailboxes/{recipient(0, 1)}"
        over = threading.Event()
        in_list: dict[int, float] = {}
        in_stream: dict[int, float] = {}

        def note(found: dict[int, float], entry: Mapping[str, Any], at: float) -> None:
            number = number_of(entry["subject"])
            if number is not None:
                found.setdefault(number, at)

        def poll() -> None:
            client = http.client.HTTPConnection(host, timeout=30)
            while not over.is_set():
                client.request("GET", f"{base}/messages?limit=200", headers=headers)
                page = json.loads(client.getresponse().read())
                for entry in page:
                    note(in_list, entry, time.monotonic())

        def follow() -> None:
            client = http.client.HTTPConnection(host, timeout=30)
            client.request("GET", f"{base}/events", headers=headers)
            for line in client.getresponse():
                if line.startswith(b"data: "):
                    note(in_stream, json.loads(line[6:]), time.monotonic())
                if over.is_set():
                    return

        with relay.watch() as watch:
            for target in (poll, follow):
                threading.Thread(target=target, daemon=True).start()
            sent = send(relay.port, load, limit=60)
            until_listed(watch, len(sent.answered))
            time.sleep(0.5)
            over.set()
        listed = {number: at for number, (at, _) in relay.listed(watch).items()}
        found: dict[str, Any] = {"messages": len(listed)}
        for name, times in (("list", in_list), ("stream", in_stream)):
            late = sorted((times[n] - at) * 1e3 for n, at in listed.items() if n in times)
            found[name] = {
                "seen": len(late),
                **{f"p{share:g}": round(_at(late, share / 100), 2) for share in (0, 1, 50, 99)},
                "most": round(late[-1], 2),
            }
        return found


def main() -> None:
    """Be the application, or measure what is asked for and print."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.readable",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("role", choices=["serve", "run", "check"])
    parser.add_argument("dsn", nargs="?")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=PEERS)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--rates", nargs="*", type=int, default=RATES)
    parser.add_argument("--mailboxes", nargs="+", type=int, default=MAILBOXES)
    parser.add_argument("--json", type=Path)
    parsed = parser.parse_args()
    if parsed.role == "serve":
        serve(parsed.dsn)
    elif parsed.role == "check":
        print(json.dumps(check(), indent=2))
    else:
        from rich.console import Console

        from tests.bench.__main__ import show

        found = run(
            parsed.rounds,
            peers=parsed.peers,
            kinds=parsed.kinds,
            rates=parsed.rates,
            mailboxes=parsed.mailboxes,
        )
        missed = show(Console(width=220), found)
        if parsed.json:
            parsed.json.write_text(json.dumps(found, indent=2) + "\n")
        sys.exit(missed > 0)


if __name__ == "__main__":
    main()
