"""What is written for people: plain when piped, never in command of the terminal."""

import io
import json
from datetime import UTC, datetime, timedelta

import click
import pytest
from rich.cells import cell_len

from relay.cli import output


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, ü and 漢", "plain text, ü and 漢"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("\x9b31m", "\\x9b31m"),
        ("a\r\nb\rc", "a\nb\\x0dc"),
        ("fdp\u202eexe", "fdp\\u202eexe"),
        ("nul\x00", "nul\\x00"),
        ("pay\u200bpal \ufeff", "pay\\u200bpal \\ufeff"),
        ("👩\u200d🚀", "👩\u200d🚀"),
    ],
)
def test_text_from_outside_cannot_drive_the_terminal(text: str, shown: str) -> None:
    """Control characters and bidirectional overrides are shown as escapes."""
    assert output.safe(text) == shown


def test_json_on_a_terminal_is_the_same_value() -> None:
    """What could drive the terminal is spelt out as JSON allows, and read back it is there."""
    value = {"subject": "\x1b]0;a\x07 \x9b \u202e \u200b \U000e0041 ü"}
    shown = output.safe_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(shown) == value
    assert shown.isprintable()


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_bytes_in_pieces_are_escaped_like_text(size: int) -> None:
    """However a character or a line's end is cut, the text is the same."""
    raw = "ü\r\n\x1b[2J\r漢\u202e\r\n\r".encode() + b"\x9b\xff"
    chunks = [raw[i : i + size] for i in range(0, len(raw), size)]
    shown = "".join(output.safe_chunks(chunks))
    assert shown == "ü\n\\x1b[2J\\x0d漢\\u202e\n\\x0d\\x9b\\xff"


def test_a_line_stays_a_line() -> None:
    """Line breaks and tabs become blanks, and nothing is the empty text."""
    assert output.line("a\nb\tc\u2028d") == "a b c d"
    assert output.line(None) == ""


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0421, "42 ms"),
        (0.9999, "1.0 s"),
        (4.44, "4.4 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (599.8, "10 min"),
        (3599, "1 h"),
        (3600, "1 h"),
        (5 * 3600 + 720, "5 h 12 min"),
        (86400, "1 d"),
        (90000, "1 d 1 h"),
    ],
)
def test_spans_are_in_units_of_people(seconds: float, shown: str) -> None:
    """A length of time is said in its two largest units at most."""
    assert output.span(seconds) == shown


def test_sizes_are_in_units_of_people() -> None:
    """Bytes below 1024 are exact, above in binary units; what is no number is nothing."""
    assert [output.size(n) for n in (0, 1023, 1024, 26_214_400, None)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "25.0 MiB",
        "",
    ]


def test_a_piped_table_is_plain_and_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    """Piped, a table has no colours and no frame, and wide characters count as two columns."""
    output.table(("name", "state"), [("漢字", ("active", "green")), ("abcdefg", "x")])
    assert capsys.readouterr().out == "NAME     STATE\n漢字     active\nabcdefg  x\n"


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_list_on_a_narrow_terminal_has_a_line_for_each(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The id is whole, texts are cut, times are said as ago, and what is spared goes first."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("COLUMNS", str(width))
    made = (datetime.now(UTC) - timedelta(minutes=8, seconds=1)).isoformat()
    row = (
        "0" * 36,
        ("deferred", "red"),
        "reader@customer.example",
        "漢字" * 20,
        output.moment(made),
    )
    output.listing(("id", "state", "to", "subject", "made"), [row] * 2, ("made", "subject"))
    head, first, second = click.unstyle(terminal.getvalue()).splitlines()
    assert first == second
    assert first.startswith(f"{'0' * 36}  deferred  reader@")
    assert cell_len(first) <= width
    assert "…" in first
    assert ("made" in head) == (width > 80) == first.endswith("8 min ago")


def test_a_list_that_is_piped_is_complete(capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get every column and all of it, as in a table."""
    output.listing(("id", "text"), [("1", "x" * 300)], ("text",))
    assert capsys.readouterr().out == f"ID  TEXT\n1   {'x' * 300}\n"


class Terminal(io.StringIO):
    """What says that somebody reads it."""

    def isatty(self) -> bool:
        return True


def test_colour_needs_a_terminal_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colour off a terminal, under NO_COLOR, or on a dumb terminal."""

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert output.has_colour(Terminal())
    assert not output.has_colour(io.StringIO())
    monkeypatch.setenv("TERM", "dumb")
    assert not output.has_colour(Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert not output.has_colour(Terminal())


def test_times_that_are_none_are_shown_as_they_are() -> None:
    """A time that cannot be read is not hidden and does no harm."""
    assert output.moment("soon\x07") == "soon\\x07"
    assert output.until("soon") == ""
    assert output.until("2000-01-01T00:00:00Z").endswith(" ago")
