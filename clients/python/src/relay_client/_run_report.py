"""What the plug-in says of a run, beside what pytest says of the tests.

That a relay is started, and how long that took, since it may take many seconds in which nothing
else is seen: on a terminal, and in the log of whoever runs the tests without one.  Why there is
none: once, at the end, whichever tests wanted one and in whatever worker; each of them has a line
that leads there.  And what `--relay-keep` has kept, each inbox with its test.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, NoReturn

import pytest

from relay_client import Refused, RelayError
from relay_client._text import in_a_line, visible

_TITLE = "relay-client"
_KEY = "relay_client"  # of what a worker of pytest-xdist hands over at its end
_NAMED = 20  # inboxes


class Progress:
    """Says where pytest does that a relay is started, and what became of it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began: float | None = None

    def begin(self) -> None:
        """Say that one is started."""
        self._began = time.monotonic()
        self._say("starting a relay\u2026")

    def end(self, what: str) -> None:
        """Say what became of it, if it was started here."""
        if self._began is not None:
            self._say(f"{what} after {time.monotonic() - self._began:.1f} s")

    def _plugin(self, name: str) -> Any:
        return self._config.pluginmanager.getplugin(name)

    def _say(self, text: str) -> None:
        capturing = self._plugin("capturemanager")
        with capturing.global_and_fixture_disabled() if capturing else nullcontext():
            self._write(f"{_TITLE}: {text}")

    def _write(self, line: str) -> None:
        reporter = self._plugin("terminalreporter")
        if hasattr(self._config, "workerinput"):
            # A worker of pytest-xdist: its error output is that of who started it.
            sys.stderr.write(f"\n{line}\n")
            sys.stderr.flush()
        elif reporter is not None:
            reporter.ensure_newline()
            if self._config.get_terminal_writer().width_of_current_line:
                reporter.line("")  # after the dots of -q
            reporter.line(line)
            reporter.flush()


class RunReport:
    """What is said once, at the end: why tests had no relay, and what `--relay-keep` has left."""

    def __init__(self) -> None:
        self._why: dict[str, str] = {}
        self._kept: list[tuple[str, str]] = []  # each test, and its inbox
        self._url = ""

    def fail(self, error: RelayError, advice: str = "", url: str = "") -> NoReturn:
        """Remember why there is no relay; the test that asked fails with a line that leads here.

        `url`: where something answers, which may be none.
        """
        said = str(error)
        gist = re.split(r"; |: | \(", said, maxsplit=1)[0]
        if url and isinstance(error, Refused) and error.problem == "unknown":
            gist = f"no relay answers at {url}"
        self._why.setdefault(gist, f"{said}\n{advice}".strip())
        short = f"no relay (see {_TITLE} at the end): {gist}"
        raise pytest.fail.Exception(short, pytrace=False) from None

    def keep(self, test: str, address: str, url: str) -> None:
        """Remember an inbox that a test has left, and the relay where it is."""
        self._kept.append((test, address))
        self._url = url

    def hand_over(self, output: dict[str, Any]) -> None:
        """Give a worker's to its controller, in what is sent at the end."""
        output[_KEY] = (self._why, self._kept, self._url)

    def take_over(self, output: Mapping[str, Any]) -> None:
        """Take that of a worker."""
        whys, kept, url = output.get(_KEY, ({}, [], ""))
        self._why = {**whys, **self._why}
        self._kept += kept
        self._url = self._url or url

    def explain(self, reporter: pytest.TerminalReporter, command: str | None) -> None:
        """Say it; `command` opens what a relay that was started for the run has kept."""
        for why in self._why.values():
            reporter.section(f"{_TITLE}: why tests have no relay")
            reporter.line(why)
        if not self._kept and command is None:
            return
        reporter.section(f"{_TITLE}: what is kept")
        count = len(self._kept)
        where = f", at {self._url}" if command is None else ""
        if count:
            inboxes = f"{count} inboxes, until their" if count > 1 else "1 inbox, until its"
            reporter.line(visible(f"{inboxes} time is over{where}:"))
            for test, address in self._kept[:_NAMED]:
                reporter.line(f"  {in_a_line(test)}: {in_a_line(address)}")
            if count > _NAMED:
                reporter.line(f"  and {count - _NAMED} more")
        if command is not None:
            reporter.line("the data of the relay that was started; it is opened by")
            reporter.line(f"  {command}")
