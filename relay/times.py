"""Instants as people and programs write them: RFC 3339.  Pure."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(instant: datetime | float) -> str:
    """Return an instant (a number: seconds since 1970) as RFC 3339 in UTC, with microseconds."""
    if not isinstance(instant, datetime):
        instant = datetime.fromtimestamp(instant, UTC)
    return instant.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def parse_instant(text: str) -> datetime | None:
    """Read an ISO 8601 instant, in UTC where it names no zone; None for what is none.

    Outside of what PostgreSQL and every zone can hold, a time says nothing useful: None, too.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        return None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return instant if 1 < instant.year < 9999 else None
