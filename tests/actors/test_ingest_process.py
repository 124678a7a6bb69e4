"""SMTP sessions in processes of their own: what holds where there is one holds for all of them."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from actors.messages import Report
from relay import log as logging
from relay.metrics import registry
from relay.smtp.channel import MAX_PACKET, Kind, pack
from relay.smtp.front import Front, Link
from relay.smtp.limits import SmtpLimits
from relay.storage import Disk, Space
from tests.actors.running import Lines, kept, logged
from tests.certificates import write
from tests.eventually import eventually
from tests.smtp.service import Client, Service, serving_by_processes

MIB = 1024 * 1024


@pytest.fixture
def lines() -> Iterator[Lines]:
    """The relay's log, with what its processes say."""
    with kept() as lines:
        yield lines


def pid_of(lines: Lines, name: str) -> int:
    """The process that this actor has now."""
    return next(
        int(line["pid"])
        for line in reversed(lines)
        if line["event"] == "ingest.process_ready" and line["actor"] == name
    )


def alive(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def shown(pid: int) -> bytes:
    """What anybody of this account may read of a process: its arguments and its environment."""
    process = Path(f"/proc/{pid}")
    return (process / "cmdline").read_bytes() + (process / "environ").read_bytes()


async def back(service: Service, name: str) -> None:
    """Wait until an actor runs again after its first life."""

    def again() -> bool:
        (node,) = [one for one in service.supervisor.tree().children if one.name == name]
        return node.restarts >= 1 and node.state == "running"

    await eventually(again, f"{name} is back")


@asynccontextmanager
async def clients(service: Service, count: int) -> AsyncIterator[list[Client]]:
    """So many clients: the first is served by one process, the second by the other, and so on."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(service.client()) for _ in range(count)]


async def test_mail_through_all_processes_is_stored(pool, lines):
    """By a writer of each; what they log, count and wake is this relay's."""

    def accepted() -> float:
        return registry.get_sample_value("relay_smtp_messages_total", {"outcome": "accepted"}) or 0

    woken: list[int] = []
    before = accepted()
    async with serving_by_processes(pool, wake_summariser=lambda: woken.append(1)) as service:
        bob = await service.mailbox()
        async with clients(service, 4) as several:
            for number, client in enumerate(several):
                assert (await client.deliver(b"%d\r\n" % number, bob))[:3] == "250"
        assert sorted(raw for _, _, raw in await service.stored()) == [
            b"%d\r\n" % number for number in range(4)
        ]
        assert woken
        await eventually(accepted, "they are counted here", until=lambda n: n == before + 4)

        def writers() -> set[str]:
            return {line["actor"] for line in lines if line["event"] == "writer.stored"}

        await eventually(writers, "both say so", until=lambda found: len(found) == 2)
    assert writers() == {"ingest-1", "ingest-2"}
    assert not any(alive(pid_of(lines, name)) for name in writers())


async def test_a_process_is_told_its_secrets_by_the_channel(pool, lines):
    """Neither its arguments nor its environment name the database."""
    async with serving_by_processes(pool, count=1):
        said = shown(pid_of(lines, "ingest-1"))
        assert b"actors.ingest_main" in said
        assert pool.dsn.encode() not in said
        assert not [name for name in said.split(b"\0") if name.startswith(b"RELAY_")]


async def test_libpqs_own_variables_are_for_the_processes_too(pool, lines, monkeypatch):
    """A password may be among them: they go by the channel."""
    parts = conninfo_to_dict(pool.dsn)
    monkeypatch.setenv("PGDATABASE", str(parts.pop("dbname")))
    async with serving_by_processes(pool, count=1, dsn=make_conninfo("", **parts)) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
        assert b"PGDATABASE" not in shown(pid_of(lines, "ingest-1"))


async def test_a_process_that_is_killed_costs_its_own_sessions(pool, lines):
    """The others go on, nobody is refused meanwhile, and it comes back."""
    async with serving_by_processes(pool) as service:
        bob = await service.mailbox()
        async with clients(service, 4) as several:
            os.kill(pid_of(lines, "ingest-1"), signal.SIGKILL)
            for client in several[0::2]:
                assert set(await client.replies()) <= {"reset"}
            for client in several[1::2]:
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
            async with service.client() as late:
                assert (await late.deliver(b"y\r\n", bob))[:3] == "250"
        await back(service, "ingest-1")
        (said,) = [
            str(one.last_event) for one in service.supervisor.tree().children
            if one.name == "ingest-1"
        ]  # fmt: skip
        assert said == "ready"
        shown = {one.name: one.processes for one in service.supervisor.tree().children}
        ((first,), (second,)) = shown["ingest-1"], shown["ingest-2"]
        assert (first.restarts, second.restarts) == (1, 0)
        assert first.pid != second.pid
        assert first.cpu_seconds is not None
        async with clients(service, 2) as two:
            for client in two:
                assert (await client.deliver(b"z\r\n", bob))[:3] == "250"


async def test_a_process_that_hangs_is_killed(pool, lines):
    """It is silent, so another is started; connections that it had not taken go elsewhere."""
    async with serving_by_processes(pool, patience=2.0) as service:
        bob = await service.mailbox()
        hung = pid_of(lines, "ingest-1")
        os.kill(hung, signal.SIGSTOP)
        async with service.raw_client() as one, service.raw_client() as two:
            for client in (one, two):  # one of them is in the channel of the process that hangs
                assert (await client.reply())[:3] == "220"
                assert (await client.ask("EHLO client.example"))[:3] == "250"
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
        await back(service, "ingest-1")
        assert not alive(hung)
        assert pid_of(lines, "ingest-1") != hung


async def test_limits_are_those_of_all_processes(pool):
    """Connections of one peer, whichever process has them; the silent give way, the busy do not."""
    limits = SmtpLimits(max_connections_per_peer=4, idle_patience=0.0)
    async with serving_by_processes(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with clients(service, 3) as busy, service.client() as silent:
            for client in busy:
                await client.begin(bob)
            async with service.client() as newcomer:
                assert [reply[:9] for reply in await silent.replies()] == ["421 4.3.2"]
                await newcomer.begin(bob)
                async with service.raw_client() as refused:
                    assert [reply[:9] for reply in await refused.replies()] == ["421 4.7.0"]
                for client in (*busy, newcomer):
                    assert (await client.ask(b"x\r\n."))[:3] == "250"


async def test_sessions_that_wait_for_what_they_guessed_keep_no_place(pool):
    """They give way without any patience, once their process has said what they wait for."""
    limits = SmtpLimits(
        max_connections_per_peer=2, free_misses=0, miss_delay=30.0, longest_miss=30.0
    )
    async with serving_by_processes(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with clients(service, 2) as guessers:
            for client in guessers:
                await client.ask("MAIL FROM:<a@b.example>")
                await client.send(b"RCPT TO:<never@relay.localhost>\r\n")

            async def served() -> bool:
                async with service.raw_client() as newcomer:
                    if (await newcomer.reply())[:3] != "220":
                        return False
                    assert (await newcomer.ask("EHLO client.example"))[:3] == "250"
                    return (await newcomer.deliver(b"x\r\n", bob))[:3] == "250"

            await eventually(served, "a newcomer is let in, and delivers")
            # One of the two, whichever process has said first what its session waits for.
            told, hear = trio.open_memory_channel[list[str]](2)

            async def listen(client: Client) -> None:
                await told.send([reply[:3] for reply in await client.replies()])

            async with trio.open_nursery() as nursery:
                for client in guessers:
                    nursery.start_soon(listen, client)
                assert await hear.receive() == ["421"]
                nursery.cancel_scope.cancel()


async def test_what_is_buffered_is_that_of_all_processes(pool):
    """What one process holds the other has not; when it is stored there is room again."""
    limits = SmtpLimits(
        max_message_bytes=2 * MIB, max_buffered_bytes=3 * MIB, room_timeout=0.5
    )  # fmt: skip
    large = b"x" * 70 + b"\r\n"
    text = large * (3 * MIB // 2 // len(large))
    async with serving_by_processes(pool, limits=limits) as service:
        bob = await service.mailbox()
        async with clients(service, 2) as (one, two):
            await one.begin(bob)
            await one.send(text)
            gauge = "relay_smtp_buffered_bytes"
            await eventually(
                lambda: registry.get_sample_value(gauge) or 0.0,
                "it is held",
                until=lambda size: size >= len(text) - 1000,
            )
            assert (await two.deliver(text, bob))[:9] == "452 4.3.1"
            assert (await one.ask(b"."))[:3] == "250"
            await eventually(
                lambda: registry.get_sample_value(gauge), "it is free", until=lambda size: not size
            )
            assert (await two.deliver(text, bob))[:3] == "250"


async def test_draining_ends_the_idle_and_lets_the_busy_finish(pool):
    """In every process at once."""
    async with serving_by_processes(pool) as service:
        bob = await service.mailbox()
        async with clients(service, 4) as (first, second, idle, begun):
            for client in (first, second):
                await client.begin(bob)
                await client.send(b"one\r\n")
            assert (await begun.ask("MAIL FROM:<c@d.example>"))[:3] == "250"
            service.supervisor.shutdown()
            for client in (idle, begun):
                assert [reply[:9] for reply in await client.replies()] == ["421 4.3.2"]
            for client in (first, second):
                assert (await client.ask(b"two\r\n."))[:3] == "250"
                assert [reply[:9] for reply in await client.replies()] == ["421 4.3.2"]
        assert [raw for _, _, raw in await service.stored()] == [b"one\r\ntwo\r\n"] * 2


async def test_a_drain_that_takes_too_long_says_so(pool):
    """Sessions that do not finish hear 421 4.3.2 when the time of ingest is over, not twice it."""
    async with serving_by_processes(pool, drain_timeout=1.0) as service:
        bob = await service.mailbox()
        async with clients(service, 2) as both:
            for client in both:
                await client.begin(bob)
            service.supervisor.shutdown()
            for client in both:
                assert [reply[:9] for reply in await client.replies()] == ["421 4.3.2"]


async def test_ingest_that_is_restarted_ends_sessions_and_serves_on(pool, lines):
    """As where there is one process; the processes stay."""
    async with serving_by_processes(pool) as service:
        bob = await service.mailbox()
        before = {pid_of(lines, name) for name in ("ingest-1", "ingest-2")}
        async with service.client() as client:
            await service.supervisor.restart("ingest")
            assert [reply[:9] for reply in await client.replies()] == ["421 4.3.2"]
        async with clients(service, 2) as both:
            for client in both:
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
        assert {pid_of(lines, name) for name in ("ingest-1", "ingest-2")} == before


async def test_one_process_may_be_restarted(pool, lines):
    """Its idle sessions hear 421, a message that arrives is stored, the others notice nothing."""
    async with serving_by_processes(pool) as service:
        bob = await service.mailbox()
        before = pid_of(lines, "ingest-2")
        async with clients(service, 4) as several:
            for client in several[:2]:
                await client.begin(bob)
            await service.supervisor.restart("ingest-2")
            served = []
            for client in several[:2]:
                assert (await client.ask(b"x\r\n."))[:3] == "250"
            await back(service, "ingest-2")
            for client in several:
                if await client.silent(0.05):
                    assert (await client.deliver(b"y\r\n", bob))[:3] == "250"
                    served.append(client)
                else:
                    assert (await client.line())[:9] == "421 4.3.2"
            assert len(served) == 2
        assert pid_of(lines, "ingest-2") != before
        assert not alive(before)


async def test_a_paused_process_gets_no_new_sessions(pool, lines):
    """Those it has go on; all paused, or ingest itself: 421."""
    async with serving_by_processes(pool) as service:
        bob = await service.mailbox()
        async with clients(service, 2) as both:
            service.supervisor.pause("ingest-2")
            async with clients(service, 2) as late:
                for client in (*both, *late):
                    assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
                lines.clear()
                service.supervisor.tell("ingest-1", Report())
                service.supervisor.tell("ingest-2", Report())
                service.supervisor.resume("ingest-2")  # and it hears what it was told
                await eventually(
                    lambda: {line["actor"]: line["sessions"] for line in lines
                             if line["event"] == "actor.report"},
                    "both report",
                    until=lambda found: found == {"ingest-1": 3, "ingest-2": 1},
                )  # fmt: skip
            for name in ("ingest-1", "ingest-2"):
                service.supervisor.pause(name)
            async with service.raw_client() as refused:
                assert [reply[:9] for reply in await refused.replies()] == ["421 4.3.2"]


async def test_what_the_relay_sees_of_the_disk_its_processes_are_told(pool):
    """Below the floor they refuse, above it they take mail again."""
    free = 10
    space = Space(lambda: Disk(1000, free), lambda total: 100)
    space.look()
    async with serving_by_processes(pool, count=1, space=space) as service:
        bob = await service.mailbox()
        async with service.client() as client:

            async def answer() -> str:
                await client.ask("RSET")
                return (await client.ask("MAIL FROM:<a@b.example>"))[:9]

            await eventually(answer, "it refuses", until=lambda said: said == "452 4.3.1")
            free = 500
            space.look()
            await eventually(answer, "it takes mail", until=lambda said: said == "250 2.1.0")
            await client.ask("RSET")
            assert (await client.deliver(b"x\r\n", bob))[:3] == "250"


async def test_a_database_that_is_away_is_a_451(pool):
    """The processes serve all the same."""
    away = "host=127.0.0.1 port=1 dbname=relay"
    async with serving_by_processes(pool, count=1, dsn=away) as service, service.client() as client:
        assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "250"
        assert (await client.ask("RCPT TO:<bob@relay.localhost>"))[:9] == "451 4.3.0"


async def test_the_level_of_the_log_is_the_relays(pool, lines):
    """As it is when a process starts, and as it becomes (SIGHUP)."""
    async with serving_by_processes(pool, count=1) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
            await logged(lines, "writer.stored")
            logging.configure("error", write=lines.append)

            async def quiet() -> bool:
                lines.clear()
                assert (await client.deliver(b"x\r\n", bob))[:3] == "250"
                await trio.sleep(0.3)  # three times what its lines take
                return not lines

            await eventually(quiet, "nothing is said of it")


async def test_sighup_is_passed_on(pool, lines, tmp_path):
    """Each process reads the certificate again when its relay does, at once."""
    async with serving_by_processes(pool, certificate=write(tmp_path)) as service:

        def loaded() -> list[str]:
            return [line["actor"] for line in lines if line["event"] == "tls.certificate_loaded"]

        both = {"ingest-1", "ingest-2"}
        await eventually(loaded, "at the start", until=lambda found: set(found) == both)
        lines.clear()
        assert service.certificate is not None
        service.certificate.reload()
        await eventually(loaded, "once more", until=lambda found: set(found) > both)
        assert len(loaded()) == 3


async def test_a_process_that_cannot_start_says_why(pool, lines):
    """Its last words are the actor's error."""
    async with serving_by_processes(pool, count=1) as service:
        os.kill(pid_of(lines, "ingest-1"), signal.SIGKILL)

        def error() -> str:
            (node, _) = service.supervisor.tree().children
            return str(node.last_event) + repr(node.last_error)

        await eventually(error, "it is said", until=lambda text: "SIGKILL" in text, every=0.0005)


@pytest.mark.parametrize("level", ["rubbish", "x" + "\x85" * 60 + "ü" * (MAX_PACKET // 2 - 100)])
async def test_a_process_in_which_anything_goes_wrong_says_why(pool, lines, monkeypatch, level):
    """Not only what its tree runs; too many words are cut, if in the middle of a letter."""
    links: list[Link] = []
    join = Front.join

    def noted(front: Front, link: Link) -> None:
        links.append(link)
        join(front, link)

    monkeypatch.setattr(Front, "join", noted)
    async with serving_by_processes(pool, count=1) as service:
        said = json.dumps(([10, 1, False], None, level), ensure_ascii=False)
        links[0].channel.put(pack(Kind.TICK, said.encode()))

        def error() -> str:
            (node, _) = service.supervisor.tree().children
            return str(node.last_error)

        why = await eventually(error, "it is said", until=lambda text: "status" in text)
        assert f"status 70: KeyError: '{level[:1]}" in why
