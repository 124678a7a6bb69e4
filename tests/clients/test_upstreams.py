"""Mail servers of other people, each as an upstream of a running claimer and sender."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

import pytest
import trio
from cryptography.fernet import Fernet

from relay.access.owners import ADMINISTRATOR_ID
from relay.crypto import Vault
from relay.db.pool import Pool
from relay.outbound.composing.message import Address, Message
from relay.outbound.queue.enqueue import enqueue
from relay.outbound.routing.senders import Senders
from relay.smtp.connection import client_tls
from tests.clients.senders import program, run
from tests.eventually import eventually
from tests.npm import node_modules
from tests.outbound.running import running_outbound
from tests.smtp.test_connection import certificate

pytestmark = pytest.mark.clients

EACH = 3  # messages a mode, so that kept connections and what was announced have their part


def free_port() -> int:
    """A port that nobody listens on, for a program that cannot take port 0."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def listening(port: int) -> None:
    """Wait until somebody accepts connections."""

    async def accepts() -> bool:
        with contextlib.suppress(OSError):
            await trio.aclose_forcefully(await trio.open_tcp_stream("127.0.0.1", port))
            return True
        return False

    await eventually(accepts, f"somebody listens on {port}")


@contextlib.contextmanager
def server(command: list[str], **env: str) -> Iterator[IO[bytes]]:
    """Run a server until the block ends; yields what it writes."""
    process = subprocess.Popen(
        command,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    with process.stdout:
        try:
            yield process.stdout
        finally:
            process.kill()
            process.wait()


# Postfix's smtp-sink -----------------------------------------------------------------------------

COMMANDS = {"CONNECT": "connect", "EHLO,HELO": "ehlo", "MAIL": "mail", "RCPT": "rcpt"}
COMMANDS |= {"DATA": "data", ".": "dot"}
REFUSED = {"MAIL": "failed", "RCPT": "bounced", "DATA": "failed", ".": "failed"}
"""What a 5xx means from MAIL on; before, it is the route's trouble and defers."""

MODES: dict[tuple[str, ...], tuple[str, str]] = {
    # flags: (status, phase where it was decided)
    **{("-f", verb): (REFUSED.get(verb, "queued"), phase) for verb, phase in COMMANDS.items()},
    **{("-r", verb): ("queued", phase) for verb, phase in COMMANDS.items()},
    **{("-q", verb): ("queued", phase) for verb, phase in COMMANDS.items()},
    **{("-Q", verb): ("queued", phase) for verb, phase in COMMANDS.items()},
    **{(how, "RSET,NOOP,VRFY,QUIT"): ("sent", "dot") for how in ("-f", "-r", "-q", "-Q")},
    ("-f", "EHLO"): ("sent", "dot"),  # HELO does
    ("-f", "RCPT", "-b", "450", "-B", "552 5.2.2 full"): ("bounced", "rcpt"),
    **{(how,): ("sent", "dot") for how in ("-v", "-8", "-a", "-e", "-E", "-p", "-P", "-N", "-F")},
    ("-T", "1000"): ("sent", "dot"),
    ("-w", "1"): ("sent", "dot"),
    ("-W", "MAIL:1", "-p"): ("sent", "dot"),  # pipelined, it would answer out of order
    ("-H", "1"): ("sent", "dot"),
}


def smtp_sink(stack: contextlib.ExitStack, flags: tuple[str, ...], dump: Path) -> int:
    """Start a sink that writes what it takes to `dump`; its port."""
    port = free_port()
    # As root it insists on becoming somebody else, who has to be able to write the dump.
    options = ["-u", "nobody"] if os.geteuid() == 0 else []
    words = [*options, *flags, "-D", str(dump), f"127.0.0.1:{port}", "20"]
    stack.enter_context(server([program("smtp-sink"), *words]))
    return port


@pytest.fixture
def dumps() -> Iterator[Path]:
    """A directory that anybody may write to."""
    directory = Path(tempfile.mkdtemp(prefix="relay-test-"))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory)


async def mail_of(pool: Pool, number: int, url: str) -> None:
    """Make a sender with this upstream, and queue its messages, each to another domain."""
    sender = f"s{number}@mode.example"
    await pool.execute(
        "INSERT INTO relay.senders (address, upstream) VALUES (%s, %s)", (sender, url)
    )
    recipients = [Address(f"r@d{number}-{each}.example") for each in range(EACH)]
    await enqueue(
        pool, [Message(Address(sender), recipients, f"mode {number}", text="a\n.b\n..c\n")]
    )


async def became(pool: Pool, number: int) -> dict[str, Any]:
    """Status, deciding phases and attempts of a mode's messages."""
    rows = await pool.fetch(
        """
        SELECT m.status, m.attempts, a.phase
        FROM relay.outbound_messages m
        LEFT JOIN relay.outbound_attempts a ON a.message_id = m.id
        WHERE m.sender = %s
        """,
        (f"s{number}@mode.example",),
    )
    return {
        "status": {row[0] for row in rows},
        "phase": {row[2] for row in rows} - {None},
        "attempts": sum(row[1] for row in rows),
    }


async def test_smtp_sink_in_every_mode_it_has(pool: Pool, dumps: Path):
    """Refusals, hang-ups and 421 at every command, missing extensions, delays: what becomes of the
    mail is what the law says, each in its own time, and what was taken was taken once."""
    program("smtp-sink")
    with contextlib.ExitStack() as stack:
        for number, flags in enumerate(MODES):
            port = smtp_sink(stack, flags, dumps / f"{number}")
            await listening(port)  # before the next takes a free port
            await mail_of(pool, number, f"smtp://127.0.0.1:{port}")
        async with running_outbound(pool, "loop:", concurrency=200, within=60) as outbound:
            outbound.wake()
            waiting = dict(enumerate(MODES.items()))

            async def unfinished() -> list[Any]:
                for number, (flags, (status, phase)) in list(waiting.items()):
                    found = await became(pool, number)
                    assert found["status"] <= {status, "queued", "processing"}, (flags, found)
                    if found["status"] == {status} and found["phase"] == {phase}:
                        del waiting[number]
                return [(mode, await became(pool, number)) for number, mode in waiting.items()]

            await eventually(
                unfinished,
                "all modes have ended",
                until=lambda left: not left,
                within=50.0,
                every=0.1,
            )
        for number, (flags, (status, phase)) in enumerate(MODES.items()):
            found = await became(pool, number)
            assert found["phase"] == {phase}, flags
            if status != "queued":
                assert found["attempts"] == EACH, flags
            if phase != "dot" or status == "sent":
                dump = dumps / f"{number}"  # it holds what was refused at the dot, too
                text = dump.read_bytes() if dump.exists() else b""
                taken = re.findall(rb"^Message-ID: (.*)$", text, re.MULTILINE)
                assert len(taken) == len(set(taken)) == EACH * (status == "sent"), flags


# Haraka and aiosmtpd: STARTTLS, implicit TLS, AUTH -----------------------------------------------

LARGE = "".join(f"{number} of many lines\n.\n" for number in range(50_000))
PASSWORD = "pa55wörd"


def _ending(message: bytes) -> bytes:
    """What stands behind a message's headers."""
    return message.partition(b"\r\n\r\n")[2]


async def exchange(
    pool: Pool, upstream: str, authority: str, recipients: dict[str, str], text: str = "hello\n.\n"
) -> None:
    """Send to recipients through a sender's upstream; each becomes what is said."""
    vault = Vault([Fernet.generate_key().decode()])
    sender = "someone@from.example"
    await Senders(pool, vault).put(ADMINISTRATOR_ID, sender, upstream)
    context = client_tls(authority)
    async with running_outbound(pool, "loop:", vault=vault, context=context) as outbound:
        people = [Address(f"{name}@{name}.example") for name in recipients]
        queued = await enqueue(pool, [Message(Address(sender), people, "Grüße", text=text)])
        outbound.wake()
        for message, status in zip(queued.messages, recipients.values(), strict=True):
            attempts = 1 if status == "queued" else None
            await outbound.becomes(message.id, status, attempts)


@asynccontextmanager
async def haraka(folder: Path, methods: str) -> AsyncIterator[tuple[int, int, str, Path]]:
    """Haraka with TLS and AUTH: its two ports, its authority, and the file of what it took."""
    node = program("node")
    if int(run(node, "--version").stdout.lstrip(b"v").split(b".")[0]) < 20:
        pytest.skip("Haraka needs Node.js 20")
    home = Path(__file__).parent / "haraka"
    modules = node_modules(home)
    _, authority = certificate(folder / "ca", "127.0.0.1")
    ports = free_port(), free_port()
    config = folder / "haraka" / "config"
    shutil.copytree(home / "plugins", folder / "haraka" / "plugins")
    shutil.copytree(modules / "Haraka" / "config", config)  # the defaults: it reads one folder
    shutil.copy(authority, config / "tls_cert.pem")
    shutil.copy(folder / "ca" / "key.pem", config / "tls_key.pem")
    # The group ffdhe2048 of RFC 7919.  Left alone, Haraka looks for a prime of its own, for seconds
    # or, by chance, for minutes.
    shutil.copy(home / "dhparams.pem", config)
    for name, content in {
        "plugins": "tls\nauth/flat_file\nkeep\n",
        "smtp.ini": f"listen=127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}\n"
        f"smtps_port={ports[1]}\nnodes=0\ndaemonize=false\n",
        "auth_flat_file.ini": "[core]\n"
        f"methods={methods}\nconstrain_sender=false\n[users]\nsomeone={PASSWORD}\n",
        "loglevel": "ERROR\n",
        "me": "haraka.example\n",
    }.items():
        (config / name).write_text(content)
    kept = folder / "kept"
    kept.touch()
    command = [node, str(modules / "Haraka" / "bin" / "haraka"), "-c", str(config.parent)]
    with server(command, KEEP=str(kept)):
        await listening(ports[1])
        yield *ports, authority, kept


@pytest.mark.parametrize("methods", ["PLAIN", "LOGIN", "CRAM-MD5"])
async def test_haraka_takes_mail_over_tls_with_each_mechanism(pool: Pool, tmp_path: Path, methods):
    """With PIPELINING and each way to authenticate: taken once and whole, refused, deferred."""
    credentials = f"someone:{quote(PASSWORD)}"
    async with haraka(tmp_path, methods) as (port, implicit, authority, kept):
        wanted = {f"u{number}": "sent" for number in range(5)}
        wanted |= {"nobody": "bounced", "later": "queued", "spam": "failed", "full": "queued"}
        wanted |= {"away": "queued"}
        await exchange(pool, f"smtp+starttls://{credentials}@127.0.0.1:{port}", authority, wanted)
        url = f"smtps://{credentials}@127.0.0.1:{implicit}"
        await exchange(pool, url, authority, {"large": "sent"}, LARGE)
        await exchange(
            pool, f"smtps://someone:wrong@127.0.0.1:{implicit}", authority, {"x": "queued"}
        )
        taken = [json.loads(line) for line in kept.read_text().splitlines()]
    names = [recipient.partition("@")[0] for mail in taken for recipient in mail["recipients"]]
    assert sorted(names) == ["large", *(f"u{number}" for number in range(5))]
    assert {(mail["user"], mail["tls"]) for mail in taken} == {("someone", True)}
    bodies = {_ending(base64.b64decode(mail["message"])) for mail in taken}
    assert bodies == {b"hello\r\n.\r\n", LARGE.replace("\n", "\r\n").encode()}


AIOSMTPD = """
    import asyncio, hashlib, hmac, os, ssl, sys, warnings
    from aiosmtpd.smtp import SMTP, AuthResult, MISSING

    chain, key, mechanism, password = sys.argv[1:]

    class Handler:
        async def handle_RCPT(self, server, session, envelope, address, options):
            if address.startswith("nobody"):
                return "550 5.1.1 no such user"
            envelope.rcpt_tos.append(address)
            return "250 2.1.5 ok"

        async def handle_DATA(self, server, session, envelope):
            print(*envelope.rcpt_tos, flush=True)
            return "250 2.0.0 taken"

        async def auth_CRAM__MD5(self, server, args):
            challenge = b"<1896.697170952@aiosmtpd.example>"
            answer = await server.challenge_auth(challenge.decode())
            if answer is MISSING:
                return AuthResult(success=False)
            digest = hmac.new(password.encode(), challenge, hashlib.md5).hexdigest()
            right = answer == f"someone {digest}".encode()
            return AuthResult(success=right, handled=False, auth_data=b"someone")

    def authenticate(server, session, envelope, how, data):
        right = data.login == b"someone" and data.password == password.encode()
        return AuthResult(success=right and how == mechanism, handled=False, auth_data=data)

    async def main():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain, key)
        others = {"PLAIN", "LOGIN", "CRAM-MD5"} - {mechanism}
        server = await asyncio.get_running_loop().create_server(
            lambda: SMTP(Handler(), tls_context=context, require_starttls=True,
                         authenticator=authenticate, auth_required=True,
                         auth_exclude_mechanism=others),
            "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    warnings.simplefilter("ignore")
    asyncio.run(main())
"""


@pytest.mark.parametrize("mechanism", ["PLAIN", "LOGIN", "CRAM-MD5"])
async def test_aiosmtpd_with_starttls_and_each_mechanism(pool: Pool, tmp_path: Path, mechanism):
    """Without PIPELINING: taken once, refused, and a wrong password defers."""
    _, authority = certificate(tmp_path / "ca", "127.0.0.1")
    command = [sys.executable, "-c", textwrap.dedent(AIOSMTPD)]
    command += [authority, str(tmp_path / "ca" / "key.pem"), mechanism, PASSWORD]
    with server(command) as output:
        port = int(await trio.to_thread.run_sync(output.readline))
        url = f"smtp+starttls://someone:{quote(PASSWORD)}@127.0.0.1:{port}"
        wanted = {"a": "sent", "nobody": "bounced", "b": "sent", "c": "sent"}
        await exchange(pool, url, authority, wanted)
        url = f"smtp+starttls://someone:wrong@127.0.0.1:{port}"
        await exchange(pool, url, authority, {"x": "queued"})
        taken = [await trio.to_thread.run_sync(output.readline) for _ in "abc"]
    assert sorted(taken) == [f"{name}@{name}.example\n".encode() for name in "abc"]
