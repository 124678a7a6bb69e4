"""The errors of this client.

All of it is a `RelayError`; each text says what was asked for and what came instead.
"""

from __future__ import annotations

from collections.abc import Sequence


class RelayError(Exception):
    """Anything that this client raises on its own."""


class Unreachable(RelayError):
    """The relay does not answer: it is not there, or went away and did not come back in time."""


class Refused(RelayError):
    """The relay answered, and said no.

    `status` is HTTP's, `problem` names the case and stays the same over time (`quota`,
    `mailbox-not-found`, …), `errors` has a sentence for each fault, `retry_after` the seconds after
    which it may be asked again, where that was said.
    """

    def __init__(
        self,
        status: int,
        problem: str,
        detail: str,
        errors: Sequence[str] = (),
        retry_after: float = 0.0,
    ) -> None:
        super().__init__(status, problem, detail, errors, retry_after)
        self.status = status
        self.problem = problem
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after

    def __str__(self) -> str:
        more = [error for error in self.errors if error != self.detail]
        return f"{self.status} {self.problem}: {' '.join([self.detail, *more])}"


class WaitTimeout(RelayError, TimeoutError):
    """Nothing that was waited for came in time; the text lists what did come.

    `wanted` is what was waited for, in words, `timeout` for how long, in seconds.
    """

    def __init__(
        self, wanted: str, timeout: float, instead: str, others: Sequence[str] = ()
    ) -> None:
        super().__init__(wanted, timeout, instead, others)
        self.wanted = wanted
        self.timeout = timeout
        self.instead = instead
        """What there is in its place, as a clause: `nothing came`, `2 others came`."""
        self.others = tuple(others)
        """A line for each message that came and was not waited for, the newest first."""

    def __str__(self) -> str:
        listed = "".join(f"\n  {other}" for other in self.others)
        said = f"{self.instead}:{listed}" if listed else self.instead
        return f"waited {self.timeout:g} s for {self.wanted}; {said}"


class UnexpectedMail(RelayError, AssertionError):
    """Mail came where none was to come."""


class NotDelivered(RelayError):
    """A message that was sent has ended otherwise than it was waited for."""

    def __init__(self, status: str, wanted: str, error: str | None) -> None:
        super().__init__(status, wanted, error)
        self.status = status
        self.wanted = wanted
        self.error = error
        """What the other side said, if it said something."""

    def __str__(self) -> str:
        why = f": {self.error}" if self.error else ""
        return f"the message is {self.status}, and will not be {self.wanted}{why}"


class NoSuchLink(RelayError, LookupError):
    """No link of a message is like the one that is wanted."""
