"""The plug-in, in runs of pytest of its own."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from cases import CASES

import relay_client
from relay_client import Relay, RelayError
from relay_client._local_relay import (
    _OURS,
    Process,
    _runs,
    _watch,
    process_of,
    running,
    started,
    stop,
)
from relay_client._records import parsed_info
from relay_client._smtp_server import smtp_server_of

_SENDS = """
import smtplib
import pytest

def put(server, to, text):
    with smtplib.SMTP(server.host, server.port) as smtp:
        smtp.login(server.user, server.password)
        smtp.sendmail("a@shop.example", [to], f"Subject: Welcome\\n\\n{text}")
"""


@pytest.fixture
def inner(
    pytester: pytest.Pytester, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """Return a place to run pytest in, against the relay of this run."""
    monkeypatch.setenv("RELAY_URL", relay.url)
    monkeypatch.setenv("RELAY_TOKEN", str(relay.token))
    monkeypatch.setenv("PYTHONPATH", str(Path(relay_client.__file__).parents[1]))
    # Where the relay's own tests are installed, it would be most of what a run loads.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:schemathesis")
    pytester.makeini("[pytest]")
    return pytester


def _run(inner: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return inner.runpytest_subprocess("-p", "no:cacheprovider", *_PLUGIN, *arguments)


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    if sys.version_info >= (3, 10):
        points = entry_points(group="pytest11")
    else:
        points = entry_points().get("pytest11", ())
    return any(point.value == "relay_client.pytest_plugin" for point in points)


_PLUGIN = () if _is_installed() else ("-p", "relay_client.pytest_plugin")


def test_five_lines_pass_in_parallel(inner: pytest.Pytester) -> None:
    """Each test has an inbox of its own, and sees its own mail only."""
    inner.makepyfile(
        _SENDS
        + """
@pytest.mark.parametrize("number", range(24))
def test_sign_up(inbox, smtp_server, number):
    put(smtp_server, inbox.address, f"code {100000 + number}")
    assert inbox.wait("Welcome").code == str(100000 + number)
    assert len(inbox.messages()) == 1
"""
    )
    parallel = ("-n", "2") if inner._request.config.pluginmanager.hasplugin("xdist") else ()
    _run(inner, *parallel).assert_outcomes(passed=24)


def test_a_failed_test_shows_its_mail(inner: pytest.Pytester) -> None:
    """With subject, code and text, in JUnit's report too; the client's own frames are left out."""
    inner.makepyfile(
        _SENDS
        + """
def test_sign_up(inbox, smtp_server):
    put(smtp_server, inbox.address, "code 271828 https://shop.example/welcome")
    inbox.wait()
    inbox.wait("Reset", timeout=0.1)
"""
    )
    parallel = ("-n", "1") if inner._request.config.pluginmanager.hasplugin("xdist") else ()
    result = _run(inner, "--junitxml=junit.xml", *parallel)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*WaitTimeout: waited 0.1 s for mail with 'Reset' in the subject; 1 other came:",
            "*from a@shop.example: 'Welcome'",
            "*Mail to *@relay.localhost*",
            "*from a@shop.example: Welcome",
            "code: 271828",
            "link: https://shop.example/welcome",
        ]
    )
    result.stdout.no_fnmatch_line("*_exchange.py*")
    text = result.stdout.str()
    assert text.count("Mail to ") == 1
    report = ElementTree.parse(inner.path / "junit.xml").getroot()
    (failure,) = [str(one.text) for one in report.iter("failure")]
    assert re.search(r"Mail to \S+@relay\.localhost(.|\n)*code: 271828", failure)


def test_a_failed_test_shows_the_mail_of_inboxes_that_it_made(inner: pytest.Pytester) -> None:
    """Of one that has ended with its block, of one that is there still, and of a fixture's, each
    once and in JUnit's report too; of what was closed by hand, or ended well, nothing."""
    inner.makepyfile(
        _SENDS
        + """
@pytest.fixture
def another(relay):
    with relay.inbox(local_part=f"fixture-{id(relay)}") as inbox:
        yield inbox
    assert 0, "as it ends"

def test_it(relay, another, smtp_server):
    for part in "closed", "left", "well":
        made = relay.inbox(local_part=f"{part}-{id(relay)}")
        put(smtp_server, made.address, f"in {part}")
        made.wait()
        if part == "closed":
            made.close()
        elif part == "well":
            with made: pass
    put(smtp_server, another.address, "in fixture")
    another.wait()
    with relay.inbox(local_part=f"outer-{id(relay)}") as outer:
        with relay.inbox(local_part=f"block-{id(relay)}") as inbox:
            put(smtp_server, inbox.address, "in block")
            with pytest.raises(ZeroDivisionError), relay.inbox(local_part=f"caught-{id(relay)}"):
                1 / 0
            inbox.wait("Reset", timeout=0.2)

def test_many(relay, smtp_server):
    made = [relay.inbox() for _ in range(12)]
    assert 0, made[0].address

def test_block_of_other(relay):
    with relay.inbox() as inbox:
        pass
    assert 0
"""
    )
    result = _run(inner, "--junitxml=junit.xml")
    result.assert_outcomes(failed=3, errors=1)
    said = result.stdout.str()
    first, _, others = said.partition("_ test_many _")
    titles = re.findall(r"-+ Mail to (\w+)-\d+@relay\.localhost -+\n(?:.*Welcome\n\n)?(.*)", first)
    assert titles == [
        ("fixture", "in fixture"),
        ("left", "in left"),
        ("outer", "nothing came"),
        ("block", "in block"),
        ("caught", "nothing came"),
    ]
    assert others.count(" Mail to ") == 11
    assert re.search(r"-+ Mail to 2 more inboxes -+\nis not shown\n", others)
    report = ElementTree.parse(inner.path / "junit.xml").getroot()
    failure = next(str(one.text) for one in report.iter("failure"))
    assert re.search(r"Mail to block-(.|\n)*in block", failure)


def test_the_mail_of_an_inbox_is_not_waited_for_where_no_relay_is(
    inner: pytest.Pytester,
) -> None:
    """Where that is what the test has failed with; where it hangs, for a time in all."""
    inner.makeconftest(
        """
import relay_client._mail_report
import relay_client._mailboxes

relay_client._mail_report.READS_WITHIN = 0.3
relay_client._mailboxes.CLOSES_WITHIN = 0.1
"""
    )
    inner.makepyfile(
        """
import socket
import time
import pytest
from relay_client import Relay, Unreachable

class Hanging(Relay):
    def hang(self):
        self._http.base_url = self.hung

@pytest.fixture
def hanging(relay):
    with socket.create_server(("127.0.0.1", 0)) as listener, Hanging(relay.url, relay.token) as one:
        one.hung = "http://127.0.0.1:%d" % listener.getsockname()[1]
        yield one

def test_unreachable(hanging):
    with hanging.inbox():
        hanging.hang()
        raise Unreachable("so it is")

def test_hangs(hanging):
    with hanging.inbox(), hanging.inbox(), hanging.inbox():
        hanging.hang()
        assert 0
"""
    )
    result = _run(inner)
    result.assert_outcomes(failed=2)
    unreachable, _, hangs = result.stdout.str().partition("_ test_hangs _")
    assert "Mail to" not in unreachable
    said = re.findall(r"Mail to .*\nwhat came could not be read within 0.3 s\n", hangs)
    assert len(said) == 3


_ASYNC = (
    _SENDS
    + """
import anyio.to_thread

@pytest.fixture
def address(async_inbox):
    return async_inbox.address

async def received(relay, inbox, address, server):
    first, other = inbox.wait("Welcome"), relay.inbox()
    async with anyio.create_task_group() as tasks:  # the loop goes on while mail is waited for
        tasks.start_soon(anyio.to_thread.run_sync, put, server, address, "code 271828")
        message = await first
        assert message.code == "271828" and b"271828" in await message.raw
    async with other as more:
        await inbox.wait_none(0, after=message)
        assert await more.messages() == []
"""
)


def test_an_asynchronous_test_has_an_inbox(inner: pytest.Pytester) -> None:
    """Under AnyIO's plug-in, on asyncio and on Trio, and with what a test starts for itself.

    Nothing is left open, which a warning would say, and what came is in the report.
    """
    inner.makepyfile(
        _ASYNC
        + """
@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param

@pytest.fixture
async def waited(async_inbox, smtp_server):
    await anyio.to_thread.run_sync(put, smtp_server, async_inbox.address, "one")
    return await async_inbox.wait("Welcome")

@pytest.mark.anyio
async def test_its_own(async_relay, async_inbox, address, smtp_server):
    await received(async_relay, async_inbox, address, smtp_server)

@pytest.mark.anyio
async def test_an_asynchronous_fixture(waited, async_inbox):
    assert waited.text.strip() == "one"
    assert [one.id for one in await async_inbox.messages()] == [waited.id]

@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_by_itself(async_relay, async_inbox, address, smtp_server, backend):
    anyio.run(received, async_relay, async_inbox, address, smtp_server, backend=backend)

@pytest.mark.anyio
async def test_it_fails(waited, async_inbox):
    await async_inbox.wait("Reset", timeout=0)

@pytest.mark.anyio
async def test_it_fails_in_a_block(async_relay, smtp_server):
    async with async_relay.inbox() as inbox:
        with anyio.fail_after(0.5):
            await anyio.to_thread.run_sync(put, smtp_server, inbox.address, "two")
            await inbox.wait("Reset")

@pytest.mark.anyio
@pytest.mark.relay_inbox(ttl=2)
async def test_marked(async_inbox, inbox):
    assert (async_inbox.address, async_inbox.expires_at) == (inbox.address, inbox.expires_at)
    await async_inbox.close()
"""
    )
    result = _run(inner, "-W", "error")
    result.assert_outcomes(passed=8, failed=4)
    result.stdout.fnmatch_lines(
        ["*WaitTimeout: waited 0 s for *Reset*", "*Mail to *@relay.localhost*", "one"]
    )
    result.stdout.fnmatch_lines(["*TimeoutError*", "*Mail to *@relay.localhost*", "two"])


def test_mail_in_a_report_drives_no_terminal(inner: pytest.Pytester) -> None:
    """A title, a cleared screen, a link that says it leads elsewhere: each is spelt."""
    inner.makepyfile(
        _SENDS
        + r"""
def test_it(inbox, smtp_server):
    put(smtp_server, inbox.address, "a\x1b]0;title\x07 b\x1b[2J\tc\x7f")
    inbox.wait()
    assert 0
"""
    )
    result = _run(inner)
    result.assert_outcomes(failed=1)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", result.stdout.str())
    result.stdout.fnmatch_lines([r"a\u001b]0;title\u0007 b\u001b[[]2J*c\u007f"])


def test_mail_in_a_report_commands_no_ci(inner: pytest.Pytester) -> None:
    """What GitHub Actions, Azure Pipelines and TeamCity obey in a run's output is spelt, too."""
    lines = (
        "::error::a",
        "  ::stop-commands::b",
        "see ##vso[task.setvariable variable=c]",
        "##[add-path]d",
        "##teamcity[e]",
        "std::move, ## and #1",
    )
    inner.makepyfile(
        _SENDS
        + f"""
def test_it(inbox, smtp_server):
    put(smtp_server, inbox.address, {chr(10).join(lines)!r})
    inbox.wait()
    assert 0
"""
    )
    result = _run(inner)
    result.assert_outcomes(failed=1)
    section = result.stdout.str().partition("Mail to ")[2].partition("short test summary")[0]
    assert not re.search(r"^\s*::|##(\[|vso|teamcity)", section, re.MULTILINE)
    assert r"\u003a:error::a" in section
    assert r"see \u0023#vso[task.setvariable variable=c]" in section
    assert "std::move, ## and #1" in section


_COMPARES = r"""
import smtplib
from email.header import Header
import pytest

EVIL = "##[error]x ##vso[task.setvariable variable=p]y \x1b]0;t\x07\x1b[2J\x1b[8m\u202eabc\r"

@pytest.fixture(scope="module")
def said(relay):
    subject = Header("Welcome " + EVIL.strip(), "utf-8").encode(linesep="\r\n")
    head = f"Subject: {subject}\r\nContent-Type: text/plain; charset=utf-8\r\n\r\n"
    mail = f"{head}a\r\n::error::pwn {EVIL.strip()}\r\n".encode()
    host, _, port = relay.info().smtp.rpartition(":")
    with relay.inbox() as inbox:
        with smtplib.SMTP(host, int(port)) as smtp:
            smtp.sendmail("a@shop.example", [inbox.address], mail)
        message = inbox.wait(subject="Welcome")
    assert "\x1b" in message.subject and "\x1b" in message.text
    return message

def test_subject(said): assert said.subject == "Welcome"
def test_text(said): assert said.text == "a\n"
def test_in(said): assert "code" in said.text
def test_not_in(said): assert "a\n:" not in said.text
def test_list(said): assert [said.subject, said.text] == []
def test_raised(said): raise ValueError(said.text)
def test_said(said): pytest.fail(said.text, pytrace=False)
def test_noted(said):
    try:
        raise ValueError(said.text)
    except ValueError as error:
        raise AssertionError(said.subject) from error
def test_locals(said):
    text, lines = said.text, said.text.splitlines()
    assert 0
def test_skipped(said): pytest.skip(said.subject)
def test_expected(said): pytest.xfail(said.subject)
@pytest.mark.xfail(reason=EVIL)  # no test of ours: how pytest tells such a reason is looked at
def test_marked(said): assert 0
@pytest.mark.xfail(reason=EVIL)  # and where the test passes all the same
def test_passed(said): pass
def test_other():
    assert EVIL == "", EVIL
"""


@pytest.mark.parametrize(
    "options",
    [("-vv", "--showlocals", "--color=yes"), ("--tb=line",), ("--tb=native", "-n", "1")],
    ids=" ".join,
)
def test_mail_that_is_compared_drives_nothing(
    inner: pytest.Pytester, options: tuple[str, ...]
) -> None:
    """What pytest shows of both sides is as harmless as the plug-in's own section, in all styles;
    a test without the fixtures has what pytest says of it."""
    inner.makepyfile(_COMPARES)
    result = _run(inner, "-rA", "--junitxml=junit.xml", "-k", "not test_other", *options)
    result.assert_outcomes(failed=9, skipped=1, xfailed=2, xpassed=1)
    said = result.stdout.str()
    for colour in re.findall(r"\x1b\[[0-9;]*m", said) if "--color=yes" in options else ():
        if "8" not in colour:
            said = said.replace(colour, "")
    for each in (said, (inner.path / "junit.xml").read_text()):
        assert "Welcome" in each
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", each)
        assert not re.search(r"(?m)^\s*::|##(\[|vso\[)", each)
    assert r"\u0023#[error]x" in said
    other = _run(inner, "-k", "test_other")  # which has not read it
    assert "##[error]x" in other.stdout.str()


def test_mail_in_a_report_fills_no_log(inner: pytest.Pytester) -> None:
    """Invisible characters that grow as they are spelt, and links of many characters, are cut."""
    inner.makepyfile(
        r"""
import smtplib

UNSEEN = "\U000e0041"
SUBJECT = "\r\n ".join([UNSEEN * 200] * 20)
LINKS = "\r\n".join(f"https://x.example/{n}/" + "q" * 900 for n in range(20))
TEXT = "\r\n".join([UNSEEN * 200] * 40)

def test_it(inbox, smtp_server):
    with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
        smtp.login(smtp_server.user, smtp_server.password)
        mail = (
            f"Subject: {SUBJECT}\r\nMIME-Version: 1.0\r\n"
            "Content-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: 8bit\r\n"
            f"\r\n{LINKS}\r\n{TEXT}"
        )
        smtp.sendmail("a@shop.example", [inbox.address], mail.encode())
    inbox.wait()
    inbox.wait("Reset", timeout=0.1)
"""
    )
    result = _run(inner, "--show-capture=no", "--tb=short")
    result.assert_outcomes(failed=1)
    assert re.search(r"; 1 other came:\n.*: '(\\u\{e0041\}){22}\u2026'\n", result.stdout.str())
    report = re.split("-+ Mail to .* -+\n", result.stdout.str())[1]
    assert report.count("\nlink: https://x.example/") > 2
    assert len(report) < 9_000


@pytest.mark.parametrize("url", ["localhost:8025", "https://{}"])
def test_no_report_has_the_token(
    inner: pytest.Pytester, relay: Relay, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """Neither where the URL is none, nor where the relay does not answer, with all that pytest
    shows of frames."""
    token = "rk_" + "s" * 40
    monkeypatch.setenv("RELAY_URL", url.format(relay.url.partition("://")[2]))
    monkeypatch.setenv("RELAY_TOKEN", token)
    inner.makepyfile("def test_it(inbox): pass\n")
    result = _run(inner, "--showlocals", "--tb=long")
    result.assert_outcomes(errors=1)
    gist = "RELAY_URL must begin with http://*: 'localhost:8025'"
    gist = gist if url[0] == "l" else "no TLS connection to https:"
    result.stdout.fnmatch_lines(["no relay (see relay-client at the end): *", f"{gist}*"])
    assert token not in result.stdout.str()


def test_a_fixture_that_fails_shows_the_mail_too(inner: pytest.Pytester) -> None:
    """Signing up is a fixture in many suites."""
    inner.makepyfile(
        _SENDS
        + """
@pytest.fixture
def signed_up(inbox, smtp_server):
    put(smtp_server, inbox.address, "code 271828")
    inbox.wait()
    inbox.wait("Reset", timeout=0.1)

def test_it(signed_up): pass
"""
    )
    result = _run(inner)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*Mail to *@relay.localhost*", "code: 271828"])


def test_where_no_relay_is_that_is_said_once(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And waited for once, not in each test: each has a line that leads there, and whoever wants no
    relay passes."""
    monkeypatch.setenv("RELAY_URL", "http://127.0.0.1:9")
    inner.makeconftest(
        """
import relay_client._exchange

relay_client._exchange.RETRY_TIMEOUT = 0.5

def pytest_fixture_setup(fixturedef):
    if fixturedef.argname == "relay":
        with open("looked", "a") as looks:
            looks.write("once ")
"""
    )
    wanting = "\n".join(f"def test_{n}(inbox): pass" for n in range(20))
    inner.makepyfile(f"{wanting}\ndef test_other(): pass")
    for parallel in _ways(inner):
        (inner.path / "looked").unlink(missing_ok=True)
        result = _run(inner, *parallel)
        result.assert_outcomes(errors=20, passed=1)
        looked = (inner.path / "looked").read_text().split()
        assert looked in (["once"], ["once"] * len(parallel)), "once in each process"
        title = " relay-client: why tests have no relay "
        errors, _, end = result.stdout.str().partition(title)
        short = "no relay (see relay-client at the end): the relay does not answer GET "
        assert len(re.findall(rf"^{re.escape(short)}\S+$", errors, re.MULTILINE)) == 20
        assert "Connection refused" not in errors
        assert end.count("Connection refused") == end.count("Without them a relay is started") == 1


def test_a_relay_that_goes_away_is_waited_for_once(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the test that finds it gone; the next has it again if it is back."""
    inner.makeconftest(
        """
import os, socket, threading
import pytest
import relay_client._exchange
from relay_client import Inbox, Relay

relay_client._exchange.RETRY_TIMEOUT = 0.3
where = os.environ["RELAY_URL"].removeprefix("http://").split(":")

class Proxy:
    away, asked = False, 0

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self.accept, daemon=True).start()
        os.environ["RELAY_URL"] = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        while True:
            peer, _ = self.listener.accept()
            threading.Thread(target=self.attend, args=(peer,), daemon=True).start()

    def attend(self, peer):
        with peer, socket.create_connection(where) as relay:
            threading.Thread(target=self.answer, args=(relay, peer), daemon=True).start()
            while asked := peer.recv(65536):
                if self.away:
                    self.asked += asked.startswith(b"POST")
                    return
                relay.sendall(asked)

    def answer(self, relay, peer):
        while answered := relay.recv(65536):
            peer.sendall(answered)

PROXY = Proxy()

@pytest.fixture
def proxy():
    return PROXY
"""
    )
    inner.makepyfile(
        """
def test_goes(inbox, proxy): proxy.away = True
def test_first(inbox): pass
def test_second(inbox): pass
def test_third(inbox): pass
def test_back(proxy):
    assert proxy.asked == 1  # what may not be made twice is asked for once
    proxy.away = False
def test_fourth(inbox): pass
"""
    )
    result = _run(inner)
    result.assert_outcomes(passed=3, errors=3)
    short = "no relay (see relay-client at the end): the relay does not answer POST "
    said = result.stdout.str().splitlines()  # where CI is set its summary has them whole, too
    assert sum(line.startswith(short) for line in said) == 3


def _ways(inner: pytest.Pytester) -> list[tuple[str, ...]]:
    """Return the options of a run in one process, and in several where that can be."""
    xdist = inner._request.config.pluginmanager.hasplugin("xdist")
    return [(), ("-n", "2")] if xdist else [()]


def test_a_start_is_said(
    inner: pytest.Pytester, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, by whoever starts it, with how long it took: on a terminal, and where none is."""
    monkeypatch.delenv("RELAY_URL")
    description = json.dumps({"http": relay.url, "admin_token": relay.token})
    inner.makepyfile("def test_other(): pass\n\ndef test_it(inbox): pass\n")
    starts = _RUNS.replace("{}", description.replace('"', '\\"'))
    quiet = ("-q", "-p", "no:cacheprovider", *_PLUGIN)
    for parallel in _ways(inner):
        said = _on_terminal(*quiet, *parallel, "--relay-command", starts)
        assert re.search(
            r"^relay-client: starting a relay…[\s.]+relay-client: it is ready after \d+\.\d s$",
            said,
            re.MULTILINE,
        ), said
        assert said.count("relay-client: ") == 2
        assert re.search(r"^2 passed in", said, re.MULTILINE), said
    ends = "sh -c 'echo no disk; exit 3'"
    said = _on_terminal(*quiet, "--relay-command", ends)
    assert len(re.findall(r"^relay-client: it ended after \d+\.\d s$", said, re.MULTILINE)) == 1, (
        said
    )
    pattern = r"^the relay ended as it started; its log is (\S+):\nno disk$"
    (log,) = re.findall(pattern, said, re.MULTILINE)
    assert Path(log).read_text() == "no disk\n"
    for parallel in _ways(inner):
        result = _run(inner, *parallel, "--relay-command", starts)
        result.assert_outcomes(passed=2)
        said = (result.stderr if parallel else result.stdout).str()
        lines = re.findall(
            r"^relay-client: (starting a relay…|it is ready after .* s)$", said, re.M
        )
        assert len(lines) == 2, said


def _on_terminal(*arguments: str) -> str:
    """Run pytest on a terminal, and return what is there to be read."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *arguments],
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "100"},
        stdin=theirs, stdout=theirs, stderr=theirs,
    ) as process:  # fmt: skip
        os.close(theirs)
        said = b""
        # Linux ends a terminal that nobody has any more with an error.
        with contextlib.suppress(OSError):
            while part := os.read(ours, 4096):
                said += part
        os.close(ours)
        process.wait(60)
    return said.decode().replace("\r\n", "\n")


def test_marker_and_keep(inner: pytest.Pytester, relay: Relay) -> None:
    """The marker chooses the inbox; what is kept is there afterwards."""
    name = f"kept-{time.time_ns()}"  # a relay that goes on gives an address out once
    inner.makepyfile(
        f"""
import pytest

@pytest.mark.relay_inbox(ttl=3, local_part="{name}")
def test_it(inbox, smtp_server):
    assert inbox.address.startswith("{name}@")
    assert smtp_server.django()["EMAIL_HOST"] == smtp_server.flask_mail()["MAIL_SERVER"]
    assert smtp_server.user == "test_it"
"""
    )
    _run(inner, "--relay-keep", "--strict-markers").assert_outcomes(passed=1)
    kept = relay.mailbox(f"{name}@relay.localhost")
    assert kept.messages() == []
    kept.close()


def test_a_mistyped_argument_of_the_marker_is_said_with_it(inner: pytest.Pytester) -> None:
    """And not as one of a function that the test does not call."""
    inner.makepyfile(
        """
import pytest

@pytest.mark.relay_inbox(tll=5)
def test_it(inbox):
    pass
"""
    )
    result = _run(inner)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*@pytest.mark.relay_inbox(ttl=None, *tll*"])
    result.stdout.no_fnmatch_line("*TypeError*")
    result.stdout.no_fnmatch_line("During handling of *")


def test_an_inbox_that_cannot_be_made_is_said_in_a_line(inner: pytest.Pytester) -> None:
    """By what the test has written, and without frames of this package or of httpx."""
    inner.makepyfile(
        """
import pytest

@pytest.mark.relay_inbox(ttl=0)
def test_ends_at_once(inbox):
    pass

@pytest.mark.relay_inbox(local_part="jane doe")
def test_is_no_address(inbox):
    pass
"""
    )
    result = _run(inner)
    result.assert_outcomes(errors=2)
    wrong = "an inbox's ttl is a number of minutes above 0, not 0"
    result.stdout.fnmatch_lines([f"@pytest.mark.relay_inbox: {wrong}"])
    result.stdout.fnmatch_lines(["@pytest.mark.relay_inbox: 422 *"])
    for frame in ("*Error*", "*httpx*", "*def *", "During handling of *"):
        result.stdout.no_fnmatch_line(frame)


def test_an_inbox_lives_for_an_hour_unless_it_is_kept(inner: pytest.Pytester, relay: Relay) -> None:
    """So a run that is killed leaves none for long; a marker may say otherwise."""
    inner.makepyfile(
        """
from datetime import datetime, timezone
import pytest

def minutes(relay, inbox):
    ends_at = relay._http.get(f"/api/v1/mailboxes/{inbox.address}").json()["expires_at"]
    left = datetime.fromisoformat(ends_at.replace("Z", "+00:00")) - datetime.now(timezone.utc)
    return left.total_seconds() / 60

def test_hour(relay, inbox):
    assert 59 < minutes(relay, inbox) < 61

@pytest.mark.relay_inbox(ttl=3)
def test_marker(relay, inbox):
    assert 2 < minutes(relay, inbox) < 4

@pytest.mark.relay_inbox(ttl=1)
def test_left_by_marker(relay, inbox):
    assert minutes(relay, inbox) < 2

def test_left(relay, inbox):
    assert minutes(relay, inbox) > 60
"""
    )
    _run(inner, "-k", "not left").assert_outcomes(passed=2, deselected=2)
    kept = _run(inner, "-k", "left", "--relay-keep")
    kept.assert_outcomes(passed=2, deselected=2)
    kept.stdout.fnmatch_lines(
        ["*what is kept*", f"2 inboxes, until their time is over, at {relay.url}: *@*, *@*"]
    )


@pytest.mark.parametrize("case", CASES["smtp_servers"], ids=lambda case: case["link"])
def test_an_application_is_pointed_where_it_reaches_the_relay(case: dict[str, Any]) -> None:
    """Where the tests reach it, in clear, and signed in only where that can be."""
    more: dict[str, Any] = {
        "version": "1",
        "submission": None,
        "domains": [],
        "public_url": case["url"],
    }
    server = smtp_server_of(case["url"], parsed_info({**case["info"], **more}), "sign up")
    assert (server.host, server.port, server.user) == (case["host"], 2525, case["user"])
    assert server.password == ("secret" if case["user"] else "")
    assert server.tls == case["info"]["starttls"]
    django, flask = server.django(), server.flask_mail()
    assert (django["EMAIL_USE_TLS"], flask["MAIL_USE_TLS"]) == (False, False)
    assert (django["EMAIL_HOST_USER"], flask["MAIL_USERNAME"]) == (server.user, server.user)


def test_it_works_where_no_relay_can_be_started(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, whose Python has no fcntl: with a relay elsewhere, or one clear error."""
    inner.makepyfile(no_fcntl="import sys\nsys.modules['fcntl'] = None\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(inner.path), os.environ["PYTHONPATH"]]))
    inner.makepyfile("def test_it(inbox): pass\n")
    _run(inner, "-p", "no_fcntl").assert_outcomes(passed=1)
    monkeypatch.delenv("RELAY_URL")
    result = _run(inner, "-p", "no_fcntl")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no relay can be started on this system: set RELAY_URL*"])


def test_mail_without_a_subject_is_shown_as_such(inner: pytest.Pytester) -> None:
    """And without a From."""
    inner.makepyfile(
        _SENDS
        + """
def test_it(inbox, smtp_server):
    with smtplib.SMTP(smtp_server.host, smtp_server.port) as smtp:
        smtp.sendmail("", [inbox.address], "To: x@y.example\\n\\nHello")
    inbox.wait().link()
"""
    )
    result = _run(inner)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*NoSuchLink: no link in a message without a subject; *", "*:* from <>: (no subject)"]
    )
    result.stdout.no_fnmatch_line("*_records.py*")


def test_html_alone_is_shown_as_such(inner: pytest.Pytester) -> None:
    """Or the report shows a text that `.text` does not have."""
    inner.makepyfile(
        """
def test_it(inbox, relay):
    for text in None, "Hello":
        relay.send(from_="a@b.example", to=inbox.address, subject="A", text=text, html="<b>Hi</b>")
        message = inbox.wait(after=None if text is None else message)
        assert message.text is None if text is None else "Hello" in message.text
    assert inbox.wait().text == "Hi"
"""
    )
    result = _run(inner)
    result.assert_outcomes(failed=1)
    heads = r"from a@b\.example: A\n(.*)\n\nHi\n(?:.*\n)+.*from a@b\.example: A\n\nHello\n"
    found = re.search(heads, result.stdout.str())
    assert found is not None
    assert found[1] == "HTML only: .text is None"


def test_what_the_report_cannot_read_ends_no_run(inner: pytest.Pytester) -> None:
    """Whatever it fails with: an error that leaves a hook ends all tests, and one that leaves a
    block hides the test's own."""
    inner.makepyfile(
        """
import relay_client._mail_report

def fails(*_, **__):
    raise UnicodeError("::x")

def test_it(inbox, relay):
    relay_client._mail_report.messages = fails
    with relay.inbox() as other:
        assert other is inbox
def test_other(): pass
"""
    )
    result = _run(inner)
    result.assert_outcomes(failed=1, passed=1)
    assert result.stdout.str().count("what came cannot be read: UnicodeError('::x')\n") == 2
    result.stdout.fnmatch_lines(["E * assert <Inbox *> is <Inbox *>"])


def test_without_a_token_it_says_what_is_needed(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inboxes are anonymous; where mail is to go is asked with a token."""
    monkeypatch.delenv("RELAY_TOKEN")
    inner.makepyfile("def test_it(inbox): pass\n\ndef test_other(smtp_server): pass\n")
    result = _run(inner)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*set RELAY_TOKEN to a key of it (relay key create * --scope read,send)*"]
    )
    result.stdout.no_fnmatch_line("During handling of *")


def test_a_relay_is_started_and_stopped(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One for all workers, which ends with the run; a command that fails is shown."""
    monkeypatch.delenv("RELAY_URL")
    monkeypatch.delenv("RELAY_TOKEN")
    inner.makepyfile(
        _SENDS
        + f"""
@pytest.mark.parametrize("number", range(4))
def test_sign_up(inbox, relay, smtp_server, number):
    with open({str(tmp_path / "seen")!r}, "a") as seen:
        print(relay.info().public_url, file=seen)
    put(smtp_server, inbox.address, "code 271828")
    assert inbox.wait().code == "271828"
"""
    )
    parallel = ("-n", "2") if inner._request.config.pluginmanager.hasplugin("xdist") else ()
    # With a temporary directory that goes before the relay does.
    inner.makeini("[pytest]\ntmp_path_retention_policy = failed")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *_PLUGIN, *parallel]
    inner.run(*command).assert_outcomes(passed=4)
    (where,) = set((tmp_path / "seen").read_text().split())
    base = tmp_path / "base"
    kept = base / "relay" / "data"
    inner.run(*command, "--basetemp", base, "-k", "0").assert_outcomes(passed=1)
    assert (base / "relay" / "relay.log").exists()
    assert not kept.exists(), "a relay that has ended leaves its data"
    options = ("--basetemp", base, "-k", "0", "--relay-keep")
    result = inner.run(*command, *options)
    result.assert_outcomes(passed=1)
    elsewhere = kept.resolve()
    assert (elsewhere / "run").exists()
    assert not elsewhere.is_relative_to(base), "pytest removes what is there"
    result.stdout.fnmatch_lines(
        ["*what is kept*", "1 inbox, *: *@relay.localhost", f"  *relay* up --data-dir {elsewhere}"]
    )
    shutil.rmtree(elsewhere)
    kept.unlink()
    monkeypatch.setenv("RELAY_URL", where)
    monkeypatch.setattr("relay_client._exchange.RETRY_TIMEOUT", 0.1)
    with Relay(where) as gone, pytest.raises(Exception, match="does not answer"):
        gone.info()
    monkeypatch.delenv("RELAY_URL")
    result = _run(inner, "--relay-command", "sh -c 'echo no disk; exit 3'", "-k", "0")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["the relay ended as it started; its log is *:", "no disk"])


_DIES = """
import os, signal
from pathlib import Path
import pytest

def test_dies(inbox, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    base = base if (base / "relay").exists() else base.parent
    os.kill(int((base / "relay/pid").read_text().split()[0]), signal.SIGKILL)
    with pytest.raises(Exception, match="does not answer"):
        inbox.wait(timeout=0)
    assert 0

@pytest.mark.parametrize("number", range(4))
def test_other(inbox, number): pass

def test_where(smtp_server): pass
"""


def test_a_relay_of_its_own_that_dies_is_not_waited_for(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no test, and no report: each says that it has ended, and why is said once."""
    monkeypatch.delenv("RELAY_URL")
    monkeypatch.delenv("RELAY_TOKEN")
    inner.makeconftest(
        "import relay_client._exchange\nrelay_client._exchange.RETRY_TIMEOUT = 100\n"
    )
    inner.makepyfile(_DIES)
    result = _run(inner)
    result.assert_outcomes(failed=1, errors=5)
    errors, _, end = result.stdout.str().partition(" relay-client: why tests have no relay ")
    gist = "the relay that was started for these tests has ended"
    short = f"no relay (see relay-client at the end): {gist}"
    assert len(re.findall(f"^{re.escape(short)}$", errors, re.MULTILINE)) == 5
    assert f"what came cannot be read: {gist}; its log is " in errors
    assert end.count(f"{gist}; its log is ") == 1
    assert "why tests have no relay" not in end


@pytest.mark.parametrize(
    ("command", "said", "unsaid"),
    [
        ("sh -c 'echo Usage: relay COMMAND; seq 999; echo tail'", "end in `up`?", "tail"),
        ("sh -c 'echo Usage: relay up; echo no option; exit 2' up", "no option", "end in"),
        ("sh -c 'echo no disk; exit 3'", "no disk\ndoes the command end in `up`?", "Usage"),
        ("sh -c 'echo no disk; exit 3' up", "no disk", "end in"),
    ],
)
def test_a_command_that_starts_no_relay(
    tmp_path: Path, command: str, said: str, unsaid: str
) -> None:
    """One that shows how it is called lacks `up`, as does one that ends at once, perhaps."""
    with pytest.raises(RelayError, match=r"^the relay ended as it started; ") as caught:
        started(tmp_path, command, os.getpid())
    assert said in str(caught.value)
    assert unsaid not in str(caught.value)


_RUNS = """sh -c 'mkdir -p "$RELAY_DATA_DIR/run"; cd "$RELAY_DATA_DIR/run";
    echo "{}" >relay.new; mv relay.new relay.json; exec sleep 100'"""


def test_a_relay_ends_with_a_run_that_was_killed(tmp_path: Path) -> None:
    """By CI, or by an editor, which let it stop nothing."""
    owner = subprocess.Popen(["sleep", "100"])
    assert started(tmp_path, _RUNS, owner.pid) == {}
    process = running(tmp_path)
    assert process is not None
    assert started(tmp_path, "false", owner.pid) == {}, "it runs already"
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 20
    while _runs(process) or (tmp_path / "data").exists():
        assert time.monotonic() < deadline, f"process {process} is left, or its data"
        time.sleep(0.05)


def test_who_watched_one_run_leaves_the_next_its_data(tmp_path: Path) -> None:
    """In the same folder, begun before it was seen that the owner of the one has gone."""
    owner = subprocess.Popen(["sleep", "100"])
    started(tmp_path, _RUNS, owner.pid)
    watch, first = _OURS[-1], running(tmp_path)
    assert first is not None
    watch.send_signal(signal.SIGSTOP)
    stop(tmp_path, first)
    assert not (tmp_path / "data").exists()
    owner.kill()
    owner.wait()
    started(tmp_path, _RUNS, os.getpid())
    watch.send_signal(signal.SIGCONT)
    watch.wait(20)
    second = running(tmp_path)
    assert second != first
    assert (tmp_path / "data" / "run" / "relay.json").exists()
    assert second is not None
    stop(tmp_path, second)


def test_a_relay_that_nobody_reaps_has_stopped(tmp_path: Path) -> None:
    """Its parent was a worker, and the first process of a container looks after nobody."""
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    began = time.monotonic()
    stop(tmp_path, process_of(ended.pid))
    assert time.monotonic() - began < 5.0
    ended.wait()


def test_whoever_has_the_number_of_a_relay_that_ended_is_let_alone(tmp_path: Path) -> None:
    """By who stops it, and by who watches; its data goes all the same."""
    with subprocess.Popen(["sleep", "100"]) as stranger:
        owner = subprocess.Popen(["sleep", "100"])
        started(tmp_path, _RUNS, owner.pid)
        relay, watch = running(tmp_path), _OURS[-1]
        assert relay is not None
        earlier = Process(stranger.pid, str(int(process_of(stranger.pid).began) - 1))
        stop(tmp_path, earlier, keep=True)
        watch.kill()
        os.kill(relay.pid, signal.SIGKILL)
        (tmp_path / "pid").write_text(f"{earlier.pid} {earlier.began}")
        _watch(owner.pid, earlier, tmp_path / "data", tmp_path / "pid")
        owner.kill()
        owner.wait()
        assert _OURS[-1].wait(60) == 0
        assert not (tmp_path / "data").exists()
        assert stranger.poll() is None
        stranger.kill()
