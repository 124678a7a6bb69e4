"""Instants as the API writes them."""

from datetime import UTC, datetime

from relay.times import parse_instant, rfc3339


def test_times_are_rfc_3339_in_utc():
    """Instants are written in UTC with microseconds."""
    zone = datetime.fromisoformat("2026-01-02T03:04:05+02:00")
    assert rfc3339(zone) == "2026-01-02T01:04:05.000000Z"
    assert rfc3339(datetime(2026, 1, 2, 3, 4, 5, 678, UTC)) == "2026-01-02T03:04:05.000678Z"
    assert rfc3339(1.5) == "1970-01-01T00:00:01.500000Z"


def test_reads_what_it_writes():
    """An instant comes back; without a zone it is UTC; what no clock can hold is none."""
    instant = datetime(2026, 1, 2, 3, 4, 5, 678, UTC)
    assert parse_instant(rfc3339(instant)) == instant
    assert parse_instant("2026-01-02T03:04:05.000678") == instant
    for text in ("", "yesterday", "9999-12-31T23:59:59-23:00", "\x00"):
        assert parse_instant(text) is None
