"""The plug-in's fixtures, in runs of pytest of its own."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest
from _pytest.terminal import TerminalReporter
from cases import CASES
from plugin_runs import SENDS, run_pytest, ways

from relay_client import Relay
from relay_client._records import parsed_info
from relay_client._run_report import RunReport
from relay_client._smtp_server import smtp_server_of


def test_five_lines_pass_in_parallel(inner: pytest.Pytester) -> None:
    """Each test has an inbox of its own, and sees its own mail only."""
    inner.makepyfile(
        SENDS
        + """
@pytest.mark.parametrize("number", range(24))
def test_sign_up(inbox, smtp_server, number):
    put(smtp_server, inbox.address, f"code {100000 + number}")
    assert inbox.wait("Welcome").code == str(100000 + number)
    assert len(inbox.messages()) == 1
"""
    )
    parallel = ways(inner)[-1]
    run_pytest(inner, *parallel).assert_outcomes(passed=24)


_ASYNC = (
    SENDS
    + """
import anyio.to_thread
from functools import partial
from relay_client import WaitTimeout

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
async def test_nobody_is_blamed(async_inbox):
    for wait in (async_inbox.wait, partial(async_inbox.wait_many, 1)):
        with pytest.raises(WaitTimeout, match=r"; nothing came$"):  # no event loop is held up
            await wait(timeout=0)

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
    result = run_pytest(inner, "-W", "error")
    result.assert_outcomes(passed=10, failed=4)
    result.stdout.fnmatch_lines(
        ["*WaitTimeout: waited 0 s for *Reset*", "*Mail to *@relay.localhost*", "one"]
    )
    result.stdout.fnmatch_lines(["*TimeoutError*", "*Mail to *@relay.localhost*", "two"])


def test_marker_and_keep(inner: pytest.Pytester, relay: Relay) -> None:
    """The marker chooses the inbox; what is kept is there afterwards, and its address taken."""
    name = f"kept-{time.time_ns()}"  # a relay that goes on gives an address out once
    inner.makepyfile(
        f"""
import pytest

@pytest.mark.relay_inbox(ttl=3, local_part="{name}")
def test_it(inbox, smtp_server):
    assert inbox.address.startswith("{name}@")
    assert smtp_server.django()["EMAIL_HOST"] == smtp_server.flask_mail()["MAIL_SERVER"]
    assert smtp_server.user == "test_it"

@pytest.mark.relay_inbox(local_part="{name}")
def test_again(inbox):
    pass
"""
    )
    result = run_pytest(inner, "--relay-keep", "--strict-markers")
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        [f"@pytest.mark.relay_inbox: 409 address-taken: '{name}' is taken: *something of the run*"]
    )
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
    result = run_pytest(inner)
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
    result = run_pytest(inner)
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
    run_pytest(inner, "-k", "not left").assert_outcomes(passed=2, deselected=2)
    kept = run_pytest(inner, "-k", "left", "--relay-keep")
    kept.assert_outcomes(passed=2, deselected=2)
    kept.stdout.fnmatch_lines(
        [
            "*what is kept*",
            f"2 inboxes, until their time is over, at {relay.url}:",
            "  *.py::test_left_by_marker: *@relay.localhost",
            "  *.py::test_left: *@relay.localhost",
        ],
        consecutive=True,
    )


def test_no_more_than_twenty_kept_inboxes_are_named(pytestconfig: pytest.Config) -> None:
    """Each with its test, on a line that drives nothing; also what a worker hands over."""
    worker, whole = RunReport(), RunReport()
    for number in range(22):
        worker.keep(f"test_a.py::test_it[{number}\x1b\n]", f"{number}@x.example", "http://x")
    output: dict[str, Any] = {}
    worker.hand_over(output)
    whole.take_over(output)
    said = io.StringIO()
    whole.explain(TerminalReporter(pytestconfig, said), None)
    _, head, first, *_, last, more = said.getvalue().splitlines()
    assert head == "22 inboxes, until their time is over, at http://x:"
    assert first == "  test_a.py::test_it[0\\u001b\\n]: 0@x.example"
    assert last == "  test_a.py::test_it[19\\u001b\\n]: 19@x.example"
    assert more == "  and 2 more"


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


def test_without_a_token_it_says_what_is_needed(
    inner: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inboxes are anonymous; where mail is to go is asked with a token."""
    monkeypatch.delenv("RELAY_TOKEN")
    inner.makepyfile("def test_it(inbox): pass\n\ndef test_other(smtp_server): pass\n")
    result = run_pytest(inner)
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(
        ["*set RELAY_TOKEN to a key of it (relay key create * --scope read,send)*"]
    )
    result.stdout.no_fnmatch_line("During handling of *")
