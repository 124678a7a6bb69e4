"""The pytest plug-in: a relay, a fresh inbox for each test, and an SMTP server to point at.

| fixture | is |
|---|---|
| `relay` | a `Relay`, the same for all tests: at `RELAY_URL`, else one that is started for them |
| `inbox` | an `Inbox` of this test alone, which ends with it |
| `async_relay`, `async_inbox` | the same for a test that is asynchronous, whatever runs it |
| `smtp_server` | where the application is to send: `host`, `port`, `user`, `password`, `tls` |

When a test fails, what came to its inboxes is in the report: to those that it has made itself, too.
Nothing in the report of a test that uses a fixture of these drives who reads it, whatever mail it
compares, warns of or records, nor does a warning from the first such test on, since a thread can
raise in another test's time.  Out of reach are `record_xml_attribute`, `record_testsuite_property`,
and what Python itself writes to stderr once the last test is over.

Where there is no relay, or none any more, the tests that want one fail, and why is said once, at
the end.  `--relay-keep` leaves inboxes, and the data of a relay that was started, as they are;
`@pytest.mark.relay_inbox(ttl=…, local_part=…)` says what inbox a test wants.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Iterator
from html import escape
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, Callable, NoReturn, TypeVar

import httpx
import pytest

from relay_client import (
    AsyncInbox,
    AsyncRelay,
    Inbox,
    Info,
    Refused,
    Relay,
    RelayError,
    Unreachable,
    _mail_report,
)
from relay_client._async import AsyncRelayOfATest
from relay_client._bounds import time_limit
from relay_client._connect import DEFAULT_URL, FROM_ENVIRONMENT, Token
from relay_client._current_test import CURRENT_TEST
from relay_client._http import run
from relay_client._local_relay import Process, ended, opens, running, started, stop
from relay_client._longrepr import tame_warning, tamed, tamed_properties
from relay_client._mail_report import report as mail_report
from relay_client._run_report import Progress, RunReport
from relay_client._smtp_server import SmtpServer as SmtpServer
from relay_client._smtp_server import login_of, smtp_server_of
from relay_client._text import visible

T = TypeVar("T")

_INBOXES = 10  # of a test, in its report
_PROBE_TIMEOUT = 0.5  # s in which a relay answers that did not before
_NAMES = Signature(
    [
        Parameter("ttl", Parameter.POSITIONAL_OR_KEYWORD, default=None),
        Parameter("local_part", Parameter.POSITIONAL_OR_KEYWORD, default=None),
        Parameter("domain", Parameter.KEYWORD_ONLY, default=None),
    ]
)
"""What the marker takes: what `Relay.inbox` does."""
_TTL = 60.0  # minutes for which an inbox lives, if the run is killed before it ends it


class _Relays:
    """Where this run's relay is, and the one that was started for it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._is_worker = hasattr(config, "workerinput")
        self._owner = os.getppid() if self._is_worker else os.getpid()
        self._keeps = bool(config.getoption("relay_keep"))
        self._ours: tuple[Path, Process] | None = None
        self._away: tuple[RelayError, str] | None = None
        self._is_used = False
        self.report = RunReport()

    def found(self, factory: pytest.TempPathFactory) -> Relay:
        """Return the relay of this run; where there is none the test fails, and that is said."""
        self._is_used = True
        # Into no variable: `--showlocals` would show the token.
        try:
            relay = Relay(*self._where(factory))
        except RelayError as error:
            self.report.fail(error, self._advice())
        try:
            relay.info()  # where no relay is that is waited for once, and not in each test
        except Refused as refused:
            anonymous = refused.status == 401 and relay.token is None
            if not anonymous:
                relay.close()
                self.report.fail(refused, self._advice(), relay.url)
        except RelayError as error:
            relay.close()
            self.report.fail(error, self._advice())
        return relay

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(self, warning_message: warnings.WarningMessage) -> None:
        """Spell what drives in a warning that may have mail in it, before anybody has shown it."""
        if self._is_used:
            tame_warning(warning_message)

    def ask(self, relay: Relay, call: Callable[[], T]) -> T:
        """Ask for what a test cannot do without.

        A relay that went away is waited for by the test that finds that out; the others fail at
        once, unless it answers again by then.
        """
        __tracebackhide__ = True
        gone = self.ended()
        if gone is not None:
            self.report.fail(gone)
        if self._away is not None:
            if not _is_reachable(relay):
                self.report.fail(*self._away)
            self._away = None
        try:
            return call()
        except Unreachable as error:
            gone = self.ended()
            self._away = (error, self._advice()) if gone is None else (gone, "")
            self.report.fail(*self._away)

    def ended(self) -> RelayError | None:
        """Return what is to be said if the relay that was started for the run has ended."""
        return None if self._ours is None else ended(*self._ours)

    def _advice(self) -> str:
        if not os.environ.get("RELAY_URL"):
            return ""
        return (
            f"RELAY_URL says where its HTTP port is, such as {DEFAULT_URL}, and RELAY_TOKEN what"
            " opens it. Without RELAY_URL a relay is started for the run."
        )

    def _where(self, factory: pytest.TempPathFactory) -> tuple[str | None, Token]:
        if os.environ.get("RELAY_URL"):
            return None, FROM_ENVIRONMENT
        base = factory.getbasetemp()
        folder = (base.parent if self._is_worker else base) / "relay"
        command = self._config.getoption("relay_command")
        progress = Progress(self._config)
        try:
            found = started(folder, command, self._owner, keep=self._keeps, begins=progress.begin)
        except RelayError:
            progress.end("it ended")  # its log is in the explanation
            raise
        progress.end("it is ready")
        process = running(folder)
        self._ours = None if process is None else (folder, process)
        return found["http"], found["admin_token"]

    def look(self) -> None:
        """Remember what was started, by a worker or here."""
        factory = getattr(self._config, "_tmp_path_factory", None)
        if self._ours is None and factory is not None and factory._basetemp is not None:
            folder = factory._basetemp / "relay"
            process = running(folder)
            self._ours = None if process is None else (folder, process)

    def explain(self, reporter: pytest.TerminalReporter) -> None:
        """Say why tests had no relay, and what is kept."""
        folder = self._ours[0] if self._keeps and self._ours is not None else None
        kept = folder is not None and (folder / "data").exists()  # unless pytest removed it
        command = self._config.getoption("relay_command")
        self.report.explain(reporter, opens(folder, command) if folder and kept else None)

    def stop(self) -> None:
        """End what was started; only who outlives all workers may."""
        if not self._is_worker:
            self.look()
            if self._ours is not None:
                folder, process = self._ours
                stop(folder, process, keep=self._keeps)
                self._ours = None


def _fail(why: str) -> NoReturn:
    """Fail a test with that alone: frames would be of this package and httpx, none the test's."""
    raise pytest.fail.Exception(why, pytrace=False) from None


def _is_reachable(relay: Relay) -> bool:
    try:
        with time_limit(_PROBE_TIMEOUT), relay._http.stream("HEAD", "/"):
            return True
    except httpx.HTTPError:
        return False


_RELAYS = pytest.StashKey[_Relays]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("relay", "mail for tests")
    group.addoption(
        "--relay-command",
        default=None,
        metavar="COMMAND",
        help="starts the relay, unless RELAY_URL is set; the installed 'relay-mail up' by default;"
        " write --relay-command='/path/to/relay up', with the =",
    )
    group.addoption(
        "--relay-keep",
        action="store_true",
        help="leave the inboxes, and the data of a relay that was started, to be looked at",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Say which markers there are."""
    config.addinivalue_line("markers", f"relay_inbox{_NAMES}: what inbox the test is given")
    config.stash[_RELAYS] = relays = _Relays(config)
    config.pluginmanager.register(relays)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Look what was started while the temporary directories are there."""
    relays = session.config.stash[_RELAYS]
    relays.look()
    output = getattr(session.config, "workeroutput", None)  # of a worker of pytest-xdist
    if output is not None:
        relays.report.hand_over(output)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take over what a worker of pytest-xdist has to say."""
    node.config.stash[_RELAYS].report.take_over(getattr(node, "workeroutput", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say why tests had no relay, and what is kept."""
    config.stash[_RELAYS].explain(terminalreporter)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the relay that was started."""
    relays = config.stash.get(_RELAYS, None)
    if relays is not None:
        relays.stop()


@pytest.fixture(scope="session")
def relay(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Relay]:
    """Return the relay of this run."""
    with request.config.stash[_RELAYS].found(tmp_path_factory) as found:
        yield found


@pytest.fixture
def inbox(request: pytest.FixtureRequest, relay: Relay) -> Iterator[Inbox]:
    """Return an inbox of this test alone."""
    marker = request.node.get_closest_marker("relay_inbox")
    args, wanted = (marker.args, dict(marker.kwargs)) if marker else ((), {})
    keeps = request.config.getoption("relay_keep")
    if not keeps and not args:
        wanted.setdefault("ttl", _TTL)
    try:
        _NAMES.bind(*args, **wanted)
    except TypeError as error:
        _fail(f"@pytest.mark.relay_inbox{_NAMES}: {error}")
    relays = request.config.stash[_RELAYS]
    try:
        made = relays.ask(relay, lambda: relay.inbox(*args, **wanted))
    except RelayError as error:
        _fail(f"@pytest.mark.relay_inbox: {error}" if marker else str(error))
    yield made
    if keeps:
        relays.report.keep(request.node.nodeid, made.address, relay.url)
    elif relays.ended() is None:
        made.close()


@pytest.fixture
def async_relay(relay: Relay) -> AsyncRelay:
    """Return the relay of this run for the event loop of one test: asyncio's, or Trio's."""
    return AsyncRelayOfATest(relay.url, relay.token)


@pytest.fixture
def async_inbox(inbox: Inbox, async_relay: AsyncRelay) -> AsyncInbox:
    """Return the inbox of this test for its event loop.

    It is `inbox`, so that it is made, ended and shown in the report without any loop.
    """
    return AsyncInbox(async_relay, inbox._handle, owned=False)


@pytest.fixture(scope="session")
def _relay_info(request: pytest.FixtureRequest, relay: Relay) -> Info:
    """Return what the relay says of itself, asked once."""
    try:
        return request.config.stash[_RELAYS].ask(relay, relay.info)
    except Refused as refused:
        if refused.status != 401:
            raise
        _fail(
            "smtp_server asks the relay where it takes mail: set RELAY_TOKEN to a key of it"
            " (relay key create --owner tests --scope read,send)"
        )


@pytest.fixture
def smtp_server(request: pytest.FixtureRequest, relay: Relay, _relay_info: Info) -> SmtpServer:
    """Return where the application is to send its mail."""
    return smtp_server_of(relay.url, _relay_info, request.node.name)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, None]:
    """Have each inbox that a test makes know as whom its application signs in, and remember it."""
    CURRENT_TEST.begin(
        login_of(item.name), reports=_has_relay(item), reads_within=_mail_report.READS_WITHIN
    )
    yield
    CURRENT_TEST.end()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Put the mail that arrived into the report of a test that failed, and spell what drives."""
    outcome = yield
    report = outcome.get_result()
    if _has_relay(item):
        colours = _has_colours(item.config)
        report.longrepr = tamed(report.longrepr, colours=colours)
        # What was printed and logged, by httpx too: that has what answers in a relay's place said.
        report.sections = tamed(report.sections, colours=colours)
        report.user_properties = tamed_properties(report.user_properties)
        if hasattr(report, "wasxfail"):  # why it was expected to fail
            report.wasxfail = tamed(report.wasxfail, colours=colours)
    if not report.failed:
        return
    sections = _mail(item.config.stash[_RELAYS].ended())
    for title, text in sections:
        if hasattr(report.longrepr, "addsection"):
            report.longrepr.addsection(title, text)  # which is in JUnit's report, too
        else:
            report.sections.append((title, text))
    if sections and item.config.pluginmanager.getplugin("html") is not None:
        text = "\n\n\n".join(f"{title}\n\n{text}" for title, text in sections)
        # Within its row: of a report in one file a link leads to a data: URL, which browsers block.
        extra = {"name": "Mail", "format_type": "html", "content": f"<pre>{escape(text)}</pre>"}
        extra.update(mime_type="text/html", extension="html")
        report.extras = [*getattr(report, "extras", []), extra]


def _mail(gone: RelayError | None) -> list[tuple[str, str]]:
    """Return what came to each inbox of the test that runs, once: the newest of them, with a title.

    `gone`: why none can be read any more.
    """
    made = CURRENT_TEST.reported()
    shown = [one for one in made if one.report is not None or not one.closed]
    sections: list[tuple[str, str]] = []
    for handle in shown[-_INBOXES:]:
        text = handle.report
        if text is None and gone is not None:
            text = f"what came cannot be read: {gone}"
        elif text is None:
            with Relay(made[handle].url, made[handle].token) as relay:
                text = run(relay._http, mail_report(handle))
        sections.append((visible(f"Mail to {handle.address}"), text))
    if len(shown) > _INBOXES:
        sections.append((f"Mail to {len(shown) - _INBOXES} more inboxes", "is not shown"))
    return sections


def _has_relay(item: pytest.Item) -> bool:
    return "relay" in getattr(item, "fixturenames", ())  # as each of the fixtures does


def _has_colours(config: pytest.Config) -> bool:
    reporting = config.pluginmanager.hasplugin("terminalreporter")
    return reporting and bool(config.get_terminal_writer().hasmarkup)
