"""The errors of this client.

All of it is a `RelayError`; each text says what was asked for and what came instead.  What others
have said is spelt in it where it could drive a terminal, or whoever runs CI (`relay_client._text`),
and cut where it is long; attributes have it as it was said.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay_client._text import visible

_MAX_LENGTH = 20_000  # characters of a text


class RelayError(Exception):
    """Anything that this client raises on its own."""

    def __str__(self) -> str:
        return visible(self._said(), _MAX_LENGTH)

    def __repr__(self) -> str:
        return visible(super().__repr__(), _MAX_LENGTH)

    def _said(self) -> str:
        return super().__str__()


class Unreachable(RelayError):
    """The relay does not answer: it is not there, or went away and did not come back in time."""


class Refused(RelayError):
    """The relay answered, and said no.

    `status` is HTTP's, `problem` names the case and stays the same over time (`quota`,
    `mailbox-not-found`, …), `errors` has a sentence for each fault, `retry_after` the seconds after
    which it may be asked again, where that was said, `title` is the case in a few words, empty
    where no relay answered.
    """

    def __init__(
        self,
        status: int,
        problem: str,
        detail: str,
        errors: Sequence[str] = (),
        retry_after: float = 0.0,
        title: str = "",
    ) -> None:
        super().__init__(status, problem, detail, errors, retry_after, title)
        self.status = status
        self.problem = problem
        self.detail = detail
        self.errors = tuple(errors)
        self.retry_after = retry_after
        self.title = title

    def _said(self) -> str:
        more = [error for error in self.errors if error != self.detail]
        return f"{self.status} {self.problem}: {' '.join([self.detail, *more])}"


class WaitTimeout(RelayError, TimeoutError):
    """Nothing that was waited for came in time; the text lists what did come, and what went wrong.

    `wanted` is what was waited for, in words, `timeout` for how long, in seconds.
    """

    def __init__(
        self,
        wanted: str,
        timeout: float,
        instead: str,
        others: Sequence[str] = (),
        rejected_recipients: Sequence[str] = (),
        captured: Sequence[str] = (),
        hint: str = "",
    ) -> None:
        super().__init__(wanted, timeout, instead, others, rejected_recipients, captured, hint)
        self.wanted = wanted
        self.timeout = timeout
        self.instead = instead
        """What there is in its place, as a clause: `nothing came`, `2 others came`."""
        self.others = tuple(others)
        """A line for each message that came and was not waited for, the newest first."""
        self.rejected_recipients = tuple(rejected_recipients)
        """A line for each recipient that SMTP rejected since the inbox was made, and whose business
        that is; the newest first."""
        self.captured = tuple(captured)
        """A line for each recipient at another domain for whom mail was captured since then, of
        this inbox's sender or by its name, or else of who had not signed in; none but for the
        administrator's token."""
        self.hint = hint
        """What to look at next, in sentences of this client's own; empty where nothing is known."""

    def _said(self) -> str:
        listed = "".join(f"\n  {other}" for other in self.others)
        said = f"{self.instead}:{listed}" if listed else self.instead
        for recipients, one, many in (
            (self.rejected_recipients, "1 recipient was refused", "{} recipients were refused"),
            (
                self.captured,
                "mail to 1 other recipient was captured",
                "mail to {} other recipients was captured",
            ),
        ):
            if recipients:
                said += ("\n" if "\n" in said else "; ") + _astray(recipients, one, many)
        said = f"waited {self.timeout:g} s for {self.wanted}; {said}"
        return f"{said}\n{self.hint}" if self.hint else said


_RECIPIENTS = 5  # lines of recipients in a text


def _astray(recipients: Sequence[str], one: str, many: str) -> str:
    """Say in words to whom mail went, or did not go."""
    count = len(recipients)
    if count == 1:
        return f"{one} since the inbox was made: {recipients[0]}"
    newest = f", the newest {_RECIPIENTS}" if count > _RECIPIENTS else ""
    listed = "".join(f"\n  {found}" for found in recipients[:_RECIPIENTS])
    return f"{many.format(count)} since the inbox was made{newest}:{listed}"


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

    def _said(self) -> str:
        why = f": {self.error}" if self.error else ""
        return f"the message is {self.status}, and will not be {self.wanted}{why}"


class NoSuchLink(RelayError, LookupError):
    """No link of a message is like the one that is wanted."""
