"""The child process that parses: batches, deadlines, deaths, and no orphans."""

import encodings
import os
import signal
import subprocess
import sys

import pytest
import trio
import trio.testing

from relay.errors import TemporaryFailure
from relay.mailboxes.examination import examine
from relay.mailboxes.parser import Parsed, Parser
from relay.returns.report import NOTHING
from tests.checks.signing import rsa_key, sign
from tests.eventually import eventually_sync
from tests.mailboxes.mail import read_row

SMALL = b"From: a@b.example\r\nSubject: %d\r\n\r\nhello\r\n"


def _subjects(found: list[Parsed]) -> list[str | None]:
    return [read_row(parsed.row)["subject"] for parsed in found]


def _errors(found: list[Parsed]) -> list[str | None]:
    return [read_row(parsed.row)["error"] for parsed in found]


async def test_answers_a_batch_in_order():
    """Many messages, large ones among them, come back in their order from one child."""
    messages = [SMALL % n for n in range(200)]
    messages[50] = SMALL % 50 + b"x" * 3_000_000
    async with Parser() as parser:
        found = await parser.summarise(messages)
        assert _subjects(found) == [str(n) for n in range(200)]
        first = parser.pid
        assert _subjects(await parser.summarise([SMALL % 7])) == ["7"]
        assert parser.pid == first
        assert parser.restarts == 0


async def test_extracts_attachments():
    """An attachment comes back with its name, type and bytes; a missing one as None."""
    raw = b"Content-Disposition: attachment; filename=x.bin\r\n\r\n" + os.urandom(300_000)
    async with Parser() as parser:
        assert await parser.attachment(raw, 0) == ("x.bin", "text/plain", raw[-300_000:])
        assert await parser.attachment(raw, 1) is None


async def test_examines_a_message_for_a_check():
    """What another process read is what would be read here; whatever the message is."""
    signed = sign(SMALL % 1 + b"https://a.example/x\r\n", rsa_key(), names=("from",))
    html = b"Content-Type: text/html\r\nFrom: a@b.example\r\n\r\n<img src=x>\r\n"
    async with Parser() as parser:
        for raw in (signed, html, b"", b"\0\xff", os.urandom(100_000)):
            assert await parser.examine(raw) == examine(raw)
        assert examine(signed).links == ("https://a.example/x",)
        assert examine(signed).evidence.signatures[0].body_matches
        parser.deadline = 0.2
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGSTOP)
        with pytest.raises(TemporaryFailure, match=r"not parsed within 0\.2 s"):
            await parser.examine(signed)


async def test_a_deadline_begins_when_the_child_has_started():
    """However long that takes."""

    class Slow(Parser):
        async def _ready(self, process: trio.Process) -> bool:
            await trio.sleep(1.5 * self.deadline)
            return await super()._ready(process)

    async with Slow(deadline=1.0) as parser:
        assert (await parser.report(b"x"))[0] == NOTHING


async def test_a_deadline_holds_from_then_on():
    """However fresh the child is."""

    class Stopped(Parser):
        async def _ready(self, process: trio.Process) -> bool:
            ready = await super()._ready(process)
            os.kill(process.pid, signal.SIGSTOP)
            return ready

    async with Stopped(deadline=0.001) as parser:
        with trio.fail_after(20):
            assert await parser.report(b"x") == (None, "not parsed within 0.001 s")
        assert parser.restarts == 1


async def test_a_child_killed_from_outside_costs_no_message_anything():
    """The message in hand is parsed once more, alone; those behind it as if nothing had been."""
    async with Parser() as parser:
        await parser.summarise([SMALL % 0])
        pid = parser.pid
        assert pid is not None
        # Stopped, it answers nothing; killed in the middle of the batch, it has answered nobody.
        os.kill(pid, signal.SIGSTOP)
        found: list[Parsed] = []

        async def parse() -> None:
            found.extend(await parser.summarise([SMALL % n for n in range(5)]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(parse)
            await trio.testing.wait_all_tasks_blocked(0.05)
            os.kill(pid, signal.SIGKILL)
        assert _subjects(found) == ["0", "1", "2", "3", "4"]
        assert _errors(found) == [None] * 5
        assert read_row(found[0].row)["body_text"] == "hello\n"
        assert parser.pid != pid
        assert parser.restarts == 1


@pytest.mark.parametrize("killed", [2, 3], ids=["twice", "and with its headers alone"])
async def test_a_message_whose_children_die_twice_is_given_up(killed: int):
    """It keeps its headers, or the reason alone where that kills, too; the others are parsed."""

    class Killed(Parser):
        async def _ready(self, process: trio.Process) -> bool:
            if self.restarts < killed:
                os.kill(process.pid, signal.SIGKILL)  # it has been asked nothing yet
            return await super()._ready(process)

    async with Killed() as parser:
        found = await parser.summarise([SMALL % n for n in range(3)])
        assert _errors(found) == ["the parser died of it", None, None]
        assert _subjects(found) == ["0" if killed == 2 else None, "1", "2"]
        assert read_row(found[0].row)["body_text"] is None
        assert parser.restarts == killed


async def test_a_child_that_dies_while_nothing_is_asked_of_it_costs_nobody():
    """The next call has another, and it is counted."""
    async with Parser() as parser:
        await parser.summarise([SMALL % 0])
        assert parser.pid is not None
        process = parser.pid
        os.kill(process, signal.SIGKILL)
        await trio.to_thread.run_sync(os.waitid, os.P_PID, process, os.WEXITED | os.WNOWAIT)
        found = await parser.summarise([SMALL % 1])
        assert (_subjects(found), _errors(found)) == (["1"], [None])
        assert parser.pid != process
        assert parser.restarts == 1


async def test_the_one_that_kills_the_child_is_the_one_that_is_blamed():
    """However many answers were held back: they are written before anything that may kill."""
    async with Parser(memory=200 * 2**20) as parser:
        huge = SMALL % 3 + b"x" * 250_000_000
        found = await parser.summarise([*(SMALL % n for n in range(3)), huge, SMALL % 4])
        assert _subjects(found) == ["0", "1", "2", "3", "4"]
        assert _errors(found) == [None, None, None, "too large to parse", None]
        assert parser.restarts == 1


async def test_more_than_the_pipes_hold_is_sent_while_answers_are_read():
    """Requests and replies of megabytes, small ones among them, do not wait for each other."""
    large = b"\r\n" + b"word " * 30_000
    messages = [large if n % 3 else SMALL % n for n in range(60)]
    async with Parser() as parser:
        with trio.fail_after(60):
            found = await parser.summarise(messages)
        texts = [read_row(parsed.row)["body_text"] for parsed in found]
        assert texts == [large.decode().lstrip() if n % 3 else "hello\n" for n in range(60)]
        assert parser.restarts == 0


async def test_a_message_over_the_deadline_is_given_up():
    """A child that does not answer in time is killed, and its message gets its headers only."""
    async with Parser() as parser:
        await parser.summarise([SMALL % 0])
        parser.deadline = 0.2
        pid = parser.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        found = await parser.summarise([SMALL % 1])
        assert _subjects(found) == ["1"]
        assert _errors(found) == ["not parsed within 0.2 s"]
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_a_message_over_the_memory_is_given_up():
    """The child's memory is limited; a message that needs more gets its headers only."""
    async with Parser(memory=200 * 2**20) as parser:
        huge = SMALL % 1 + b"x" * 250_000_000
        found = await parser.summarise([SMALL % 0, huge, SMALL % 2])
        assert _subjects(found) == ["0", "1", "2"]
        assert _errors(found) == [
            None,
            "too large to parse",
            None,
        ]
        with pytest.raises(TemporaryFailure):
            await parser.attachment(huge, 0)


async def test_a_cancelled_call_leaves_no_child_and_no_mixed_answers():
    """Cancelling in mid-conversation kills the child; the next call gets its own answers."""
    async with Parser() as parser:
        await parser.summarise([SMALL % 0])
        pid = parser.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        with trio.move_on_after(0.05):
            await parser.summarise([SMALL % 1])
        assert parser.pid is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert _subjects(await parser.summarise([SMALL % 2])) == ["2"]


async def test_what_does_not_begin_in_time_is_left():
    """A batch ends with the message in hand once its budget is used up; the rest is left."""
    large = b"\r\n" + b"https://x.example/a b " * 40_000
    async with Parser() as parser:
        found = await parser.summarise([large] * 200, budget=0.02)
        assert 1 <= len(found) < 200
        assert all(parsed.seconds > 0 for parsed in found)
        assert parser.restarts == 0
        assert _subjects(await parser.summarise([SMALL % 1], budget=0.02)) == ["1"]
        assert len(await parser.summarise([SMALL % n for n in range(5)])) == 5


async def test_character_sets_that_a_mail_names_are_not_looked_up_here():
    """The summary of a message that was given up is made by a child: this process reads none of
    its headers, and keeps none of the names in it."""
    names = [f"x-hostile-{number}" for number in range(300)]
    raw = b"".join(b"X-A: =?%s?q?a?=\r\n" % name.encode() for name in names) + b"Subject: s\r\n\r\n"
    async with Parser() as parser:
        await parser.summarise([b""])
        parser.deadline = 0.2
        assert parser.pid is not None
        os.kill(parser.pid, signal.SIGSTOP)
        found = await parser.summarise([raw])
    assert _subjects(found) == ["s"]
    assert not [name for name in encodings._cache if "hostile" in name]


@pytest.mark.parametrize("stopped", [False, True])
def test_the_child_ends_with_its_parent(stopped: bool):
    """After a kill -9 of the parent, also of one that is stopped, the child is gone by itself."""
    program = (
        "import trio, sys\n"
        "from relay.mailboxes.parser import Parser\n"
        "async def main():\n"
        "    parser = Parser()\n"
        "    await parser.summarise([b'Subject: x'])\n"
        "    print(parser.pid, flush=True)\n"
        "    await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        if stopped:
            parent.send_signal(signal.SIGSTOP)
        parent.kill()
        parent.wait()
    eventually_sync(lambda: _alive(pid), "it is gone", until=lambda alive: not alive)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
