"""What a check looks at, and what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.datadir import DataDir

if TYPE_CHECKING:
    from relay.settings import Settings

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check: ok, warn or FAIL, what was found, what to do."""

    check: str
    state: str
    found: str
    advice: str = ""


def judged(check: str, good: bool, found: str, advice: str, *, bad: str = WARN) -> Finding:
    """Return a finding that is ok, or else `bad` with its advice."""
    return Finding(check, OK if good else bad, found, "" if good else advice)


@dataclass(frozen=True)
class Patient:
    """What the checks look at.

    `settings`: those of the relay that runs, else those that one started here would have; None
    where these are not valid, and `fault` says why.  `here`: the latter, where one runs.
    """

    data: DataDir
    settings: Settings | None
    fault: str
    run: dict[str, Any] | None
    here: Settings | None = None

    @property
    def database_url(self) -> str | None:
        """The URL of a server that should be up, else None."""
        if self.settings is not None and self.settings.database.url:
            return self.settings.database.url
        return None if self.run is None else self.run.get("database_url")

    def bound(self, port: str, setting: str) -> list[str]:
        """Return where a port listens, `host:port` each: told by the relay that runs, if one does.

        As it is bound: `0.0.0.0` is everybody, while `run/relay.json` names an address to call.
        """
        if self.run is None:
            return [setting] if setting else []
        told: list[str] = self.run.get("bound", {}).get(port, [])
        return told


Check = Callable[[Patient], Iterator[Finding]]
