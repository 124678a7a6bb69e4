"""What relay/smtp/commands.py relies on in aiosmtpd; its version is pinned for this reason."""

from __future__ import annotations

import asyncio
import inspect
import socket
from contextlib import closing

import pytest
from aiosmtpd import __version__
from aiosmtpd.smtp import MISSING, SMTP, Envelope
from aiosmtpd.smtp import Session as Conversation

from relay.smtp.aiosmtpd_shim import VERBS
from relay.smtp.session import Session
from relay.smtp.shared import Shared
from tests.smtp.plain import PlainWaits
from tests.smtp.service import Nobody


@pytest.fixture
def ends():
    """Two ends of a connection; the first does not block."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def session(ends):
    """A session that nobody runs."""
    return Session(Shared(Nobody(), str), ends[0], PlainWaits(ends[0]), ("127.0.0.1", 1))


@pytest.fixture
def replies(session, ends):
    """What the session said since the last time."""

    async def said() -> list[bytes]:
        await session.lines.flush()
        heard: bytes = ends[1].recv(65536)
        return heard.splitlines(keepends=True)

    return said


def test_the_version_is_the_one_that_was_read():
    """Another version needs another look at its private names."""
    assert __version__ == "1.4.6"


def test_the_constructor_makes_the_attributes_that_are_copied(session):
    """A session has all that aiosmtpd's own code for its verbs reads."""
    names = (
        "event_handler data_size_limit enable_SMTPUTF8 _decode_data hostname tls_context "
        "_tls_protocol _auth_required _handle_hooks _ehlo_hook_ver command_size_limits"
    )
    for name in names.split():
        assert hasattr(session, name), name
    assert (session._auth_required, session.tls_context, session._decode_data) == (
        False,
        None,
        False,
    )
    assert isinstance(session.session, Conversation)
    assert all(hasattr(session.envelope, name) for name in vars(Envelope()))


def test_a_session_has_all_that_the_constructor_makes(session):
    """But for what reads and writes on asyncio."""
    with closing(asyncio.new_event_loop()) as loop:
        made = SMTP(object(), loop=loop)
    assert vars(made).keys() - vars(session).keys() == {"_stream_reader_wr", "_stream_writer"}


@pytest.mark.parametrize("verb", sorted(set(VERBS) - {"BDAT"}))  # which it does not know
def test_every_verb_is_a_coroutine_of_one_argument(verb):
    """The command loop calls each as aiosmtpd's own does."""
    method = getattr(SMTP, f"smtp_{verb}")
    assert inspect.iscoroutinefunction(method)
    assert len(inspect.signature(method).parameters) == 2


def test_only_the_verbs_meant_are_served(session):
    """AUTH is not among them."""
    assert set(session._smtp_methods) == set(VERBS)
    assert "AUTH" not in VERBS


async def test_quit_marks_the_session(session, replies):
    """It ends when the reply has left."""
    await session.smtp_QUIT(None)
    assert session.ending == "quit"
    assert await replies() == [b"221 2.0.0 Bye\r\n"]


async def test_the_general_parser_asks_our_hooks(session, replies):
    """MAIL and RCPT that are out of the ordinary reach `_mail` and `_rcpt`, parsed."""
    session.session.host_name = "x"
    session.session.extended_smtp = True
    await session.smtp_MAIL('FROM:<"a b"@c.example> SIZE=10')
    assert await replies() == [b"250 2.1.0 OK\r\n"]
    assert session.envelope.mail_from == '"a b"@c.example'
    await session.smtp_RCPT("TO:<@x.example:bob@y.example>")
    assert (await replies())[0].startswith(b"550 5.1.1 ")
    await session.smtp_MAIL("FROM:<a@b>")
    assert (await replies())[0].startswith(b"503 5.5.1 ")


@pytest.mark.parametrize("argument", ["(" * 400, "<" + "(" * 400, '<"' + "\\" * 99, "<[", "<@,@,"])
async def test_the_parser_may_trip_over_anything(session, replies, argument):
    """RecursionError and its kin are a malformed address, not an internal error."""
    session.session.host_name = "x"
    await session.smtp_MAIL("FROM:" + argument)
    assert (await replies())[0][:3] in (b"501", b"553")


async def test_a_hook_that_is_missing_means_the_default():
    """`MISSING` is what aiosmtpd takes for 'no hook'."""
    assert await Session._call_handler_hook(object(), "NOOP") is MISSING  # type: ignore[arg-type]
