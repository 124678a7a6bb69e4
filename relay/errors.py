"""The errors of Relay, by whose fault they are and what becomes of them.

`TemporaryFailure` and `PermanentFailure` are *outcomes*: they are answered, recorded or
retried, and never crash an actor.  `ConfigError` ends the process with status 78 and one
sentence that says what to change.  `Bug` is for what cannot happen; nobody catches it, so
supervision sees it.
"""


class RelayError(Exception):
    """The root of every error that Relay raises on purpose."""


class TemporaryFailure(RelayError):
    """A call did not work this time; the same call may work later (4xx, 503)."""


class PermanentFailure(RelayError):
    """A call will never work; trying it again is pointless (5xx, 4xx of HTTP)."""


class Invalid(PermanentFailure):
    """A value that a caller gave cannot be used; the message says which and why (422)."""


class DatabaseUnavailable(TemporaryFailure):
    """PostgreSQL could not be reached, did not answer in time, or broke the connection."""


class RolledBack(DatabaseUnavailable):
    """PostgreSQL undid a call for the sake of others (a deadlock, a lock that did not come in time,
    a conflict of transactions): nothing has changed, and the same call may work at once."""


class OverQuota(TemporaryFailure):
    """A quota of the plan is used up; when something went, the same call works (452, 429)."""


class ConfigError(RelayError):
    """The configuration is wrong; the message is one sentence that says what to change."""


class Occupied(ConfigError):
    """A port, a socket or the data directory is another program's, which may be a relay."""

    command: str | None = None
    """What a shell starts a relay by beside it, where somebody knows."""


class Bug(RelayError):
    """An invariant was broken.  Left to supervision."""


def innermost(error: BaseException) -> BaseException:
    """What a group of exceptions is about: the first that is none itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
