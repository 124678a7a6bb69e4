"""What is said by POP3, and what is answered: every command in every state."""

from __future__ import annotations

from uuid import UUID

import pytest

from relay.pop3.dialogue import (
    Authenticate,
    Dialogue,
    Listing,
    Quit,
    Retrieve,
    StartTls,
    Update,
)
from relay.pop3.maildrop import Maildrop

SIZES = (10, 2_000_000_000, 30)


def drop(sizes: tuple[int, ...] = SIZES) -> Maildrop:
    """A maildrop whose ids are 1, 2, 3 …"""
    return Maildrop(
        b"".join(UUID(int=place).bytes + size.to_bytes(4) for place, size in enumerate(sizes, 1))
    )


def signed_in(*, may_delete: bool = True) -> Dialogue:
    """A session in the state TRANSACTION."""
    dialogue = Dialogue(safe=True, offers_tls=True)
    dialogue.welcome(drop(), may_delete=may_delete)
    return dialogue


def listed(dialogue: Dialogue, line: bytes) -> list[bytes]:
    """The lines of a reply that has several."""
    step = dialogue.obey(line)
    assert isinstance(step, Listing)
    return b"".join(step.parts).split(b"\r\n")


def refused(step: object) -> bool:
    """Whether a reply refuses."""
    return isinstance(step, bytes) and step.startswith(b"-ERR ") and step.endswith(b"\r\n")


def test_user_then_pass_signs_in():
    """In any case; the password is all that follows the first space."""
    dialogue = Dialogue(safe=True, offers_tls=False)
    assert dialogue.obey(b"USER bob@x.example") == b"+OK\r\n"
    assert dialogue.obey(b"pAsS a secret ") == Authenticate("bob@x.example", "a secret ")
    assert dialogue.welcome(drop(), may_delete=True) == b"+OK 3 messages, 2000000040 octets\r\n"


def test_a_wrong_password_asks_for_the_user_again():
    """RFC 1939, 7: PASS comes behind a USER."""
    dialogue = Dialogue(safe=True, offers_tls=False)
    assert refused(dialogue.obey(b"PASS x"))
    dialogue.obey(b"USER a")
    assert isinstance(dialogue.obey(b"PASS x"), Authenticate)
    assert refused(dialogue.obey(b"PASS x"))


@pytest.mark.parametrize("line", [b"USER a", b"PASS b"])
def test_in_clear_nothing_secret_is_obeyed(line):
    """Before TLS; and a user of before does not count behind it."""
    dialogue = Dialogue(safe=False, offers_tls=True)
    assert refused(dialogue.obey(line))
    assert dialogue.obey(b"STLS") == StartTls()
    dialogue.begin_anew()
    assert refused(dialogue.obey(b"PASS b"))
    assert dialogue.obey(b"USER a") == b"+OK\r\n"
    assert refused(dialogue.obey(b"STLS")), "once"


def test_what_was_said_before_tls_is_forgotten():
    """RFC 2595, 4."""
    dialogue = Dialogue(safe=True, offers_tls=True)
    dialogue.obey(b"USER a")
    assert dialogue.obey(b"STLS") == StartTls()
    dialogue.begin_anew()
    assert refused(dialogue.obey(b"PASS b"))


def test_capabilities_are_those_that_there_are_now():
    """STLS where it may begin, USER where it is obeyed."""

    def offers(dialogue: Dialogue) -> list[bytes]:
        step = dialogue.obey(b"CAPA")
        assert isinstance(step, bytes)
        first, *lines, dot, end = step.split(b"\r\n")
        assert (first, dot, end) == (b"+OK", b".", b"")
        return lines

    always = [b"TOP", b"UIDL", b"RESP-CODES", b"AUTH-RESP-CODE", b"PIPELINING"]
    made = [b"IMPLEMENTATION Relay"]
    assert offers(Dialogue(safe=True, offers_tls=False)) == [*always, b"USER", *made]
    assert offers(Dialogue(safe=True, offers_tls=True)) == [*always, b"USER", b"STLS", *made]
    assert offers(Dialogue(safe=False, offers_tls=True)) == [*always, b"STLS", *made]
    assert offers(signed_in()) == [*always, *made]


def test_the_maildrop_is_told_by_number():
    """STAT, LIST and UIDL, of all and of one."""
    dialogue = signed_in()
    assert dialogue.obey(b"STAT") == b"+OK 3 2000000040\r\n"
    assert listed(dialogue, b"LIST")[1:] == [b"1 10", b"2 2000000000", b"3 30", b".", b""]
    assert dialogue.obey(b"LIST 2") == b"+OK 2 2000000000\r\n"
    ids = [str(UUID(int=place)).encode() for place in (1, 2, 3)]
    assert listed(dialogue, b"UIDL")[1:4] == [b"%d %b" % each for each in enumerate(ids, 1)]
    assert dialogue.obey(b"UIDL 3") == b"+OK 3 %b\r\n" % ids[2]
    assert dialogue.obey(b"RETR 2") == Retrieve(UUID(int=2), None)
    assert dialogue.obey(b"TOP 2 0") == Retrieve(UUID(int=2), 0)
    assert dialogue.obey(b"NOOP") == b"+OK\r\n"


def test_a_long_list_comes_in_parts():
    """So that nobody waits for all of it to be put into words."""
    dialogue = Dialogue(safe=True, offers_tls=False)
    dialogue.welcome(drop((1,) * 2500), may_delete=True)
    step = dialogue.obey(b"LIST")
    assert isinstance(step, Listing)
    parts = list(step.parts)
    assert len(parts) == 3
    assert b"".join(parts).split(b"\r\n")[1:] == [
        *(b"%d 1" % number for number in range(1, 2501)), b".", b"",
    ]  # fmt: skip


def test_what_is_deleted_is_not_there_until_it_is_taken_back():
    """It keeps its number, and nobody else's changes."""
    dialogue = signed_in()
    assert dialogue.obey(b"DELE 2") == b"+OK Marked\r\n"
    assert dialogue.obey(b"STAT") == b"+OK 2 40\r\n"
    assert listed(dialogue, b"LIST")[1:] == [b"1 10", b"3 30", b".", b""]
    for line in (b"LIST 2", b"UIDL 2", b"RETR 2", b"TOP 2 1", b"DELE 2"):
        assert refused(dialogue.obey(line))
    assert dialogue.obey(b"RSET") == b"+OK 3 messages, 2000000040 octets\r\n"
    assert dialogue.obey(b"STAT") == b"+OK 3 2000000040\r\n"
    assert isinstance(dialogue.obey(b"QUIT"), Quit)


def test_quit_deletes_what_is_marked():
    """And is an end without it."""
    dialogue = signed_in()
    dialogue.obey(b"DELE 3")
    dialogue.obey(b"DELE 1")
    assert dialogue.obey(b"QUIT") == Update([UUID(int=1), UUID(int=3)])
    assert isinstance(Dialogue(safe=True, offers_tls=True).obey(b"QUIT"), Quit)


def test_who_may_only_read_deletes_nothing():
    """A key without the scope."""
    dialogue = signed_in(may_delete=False)
    assert refused(dialogue.obey(b"DELE 1"))
    assert isinstance(dialogue.obey(b"QUIT"), Quit)


@pytest.mark.parametrize(
    "line",
    [
        *(b"LIST 0", b"LIST 4", b"LIST x", b"LIST -1", b"LIST 1 2", b"LIST  1"),
        *(b"LIST 99999999999",),
        *(b"RETR", b"RETR 0", b"RETR 4", b"RETR \xb2"),
        *(b"TOP 1", b"TOP 1 x", b"TOP 4 0", b"TOP 1 -1"),
        *(b"DELE", b"DELE 9", b"STAT 1", b"NOOP x", b"RSET x", b"QUIT x", b"UIDL 0", b"CAPA x"),
        *(b"USER a", b"PASS b", b"STLS", b"APOP a b", b"XYZ", b"", b" ", b"\0", b"\xff" * 500),
    ],
)
def test_what_is_no_command_now_is_refused(line):
    """And leaves everything as it was."""
    dialogue = signed_in()
    assert refused(dialogue.obey(line))
    assert dialogue.obey(b"STAT") == b"+OK 3 2000000040\r\n"


@pytest.mark.parametrize(
    "line",
    [
        *(b"STAT", b"LIST", b"RETR 1", b"DELE 1", b"UIDL", b"TOP 1 1", b"NOOP", b"RSET"),
        *(b"USER", b"USER ", b"PASS", b"USER a\0b", b"USER \xff", b"USER a\rb", b"STLS now", b""),
    ],
)
def test_before_the_password_there_are_no_messages(line):
    """Nor is there a user of control bytes."""
    assert refused(Dialogue(safe=True, offers_tls=True).obey(line))
