"""docs/smtp.md has every reply that the server gives, and no other."""

from __future__ import annotations

import ast
import re
import socket
from collections.abc import Iterator

from tests.docs.pages import DOCS, ROOT
from tests.relay_process import RelayProcess


def _table() -> list[str]:
    rows = re.findall(r"^\| `([2-5][0-9]{2} [^`]+)` \|", (DOCS / "smtp.md").read_text(), re.M)
    assert len(rows) > 40
    return rows


def _pattern(row: str) -> re.Pattern[str]:
    return re.compile(re.escape(row).replace("…", ".*"))


def _literals() -> Iterator[str]:
    """Yield every reply that stands in the server's sources with a code of RFC 2034."""
    for file in (ROOT / "relay/smtp").glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str | bytes):
                continue
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            if re.match(r"[245][0-9]{2} [245]\.[0-9]\.[0-9] \w", text):
                yield re.sub(r"%\w", "x", text).rstrip()


def test_every_reply_in_the_sources_is_in_the_table() -> None:
    """A reply that is added there is explained here."""
    rows = [_pattern(row) for row in _table()]
    missing = {reply for reply in _literals() if not any(row.fullmatch(reply) for row in rows)}
    assert missing == set()


CONVERSATION = [
    "MAIL FROM:<a@example.org>",  # before EHLO
    "EHLO client.example",
    "NOOP",
    "RSET",
    "HELP",
    "VRFY a@example.org",
    "VRFY",
    "EXPN list",
    "STARTTLS",
    "AUTH PLAIN AGEAYg==",
    "RCPT TO:<{box}>",  # before MAIL
    "DATA",
    "MAIL FROM:<no address>",
    "MAIL FROM:a b",
    "MAIL FROM:<a@example.org> SIZE=99999999999",
    "MAIL FROM:<a@example.org> RET=FULL",
    "MAIL FROM:<ä@example.org>",
    "MAIL FROM:<a@example.org>\x00",
    "NO\x01OP",
    "X" * 3000,
    "MAIL FROM:<a@example.org>",
    "MAIL FROM:<a@example.org>",  # a second one
    "DATA",  # before RCPT
    "RCPT TO:<no address>",
    "RCPT TO:<nobody@relay.localhost>",
    "RCPT TO:<{box}>\x00",
    "RCPT TO:<{box}> NOTIFY=NEVER",
    "RCPT TO:<{box}>",
    "DATA now",
    "DATA",
    "Subject: bare\n\r\n\r\n.",
    "MAIL FROM:<a@example.org>",
    "RCPT TO:<{box}>",
    "DATA",
    "Subject: good\r\n\r\n.",
    "NO\rOP",
    "QUIT",
]


def test_every_reply_of_a_long_conversation_is_in_the_table(relay: RelayProcess) -> None:
    """What aiosmtpd's part of the server says is there, too: each reply fits a row."""
    box = relay.create_mailbox(ttl_minutes=5)
    rows = [_pattern(row) for row in _table()]
    said: list[str] = []
    with socket.create_connection(relay.smtp, timeout=30) as sock, sock.makefile("rb") as file:

        def reply() -> str:
            while True:
                line = file.readline().decode().rstrip()
                assert line, f"closed after {said[-3:]}"
                if line[3:4] != "-":
                    return line

        said.append(reply())
        for command in CONVERSATION:
            sock.sendall(command.format(box=box).encode() + b"\r\n")
            said.append(reply())
    assert said[-2:] == ["500 5.5.2 Bare CR or LF in a command", "221 2.0.0 Bye"]
    unknown = [line for line in said if not any(row.fullmatch(line) for row in rows)]
    assert unknown == []
    assert len({line[:9] for line in said}) > 15
