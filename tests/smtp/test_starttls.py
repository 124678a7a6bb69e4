"""STARTTLS, with the TLS of Python, OpenSSL and others at the other end."""

from __future__ import annotations

import contextlib
import shutil
import smtplib
import ssl
import warnings

import pytest
import trio
from cryptography import x509

from relay.smtp.limits import SmtpLimits
from tests.actors.running import kept
from tests.certificates import serial, write
from tests.eventually import eventually
from tests.smtp import service as services


@pytest.fixture
def certificate(tmp_path):
    """The files of a certificate and its key."""
    return write(tmp_path)


def trusting(certificate: tuple[str, str]) -> ssl.SSLContext:
    """What a client trusts that has been given the certificate."""
    return ssl.create_default_context(cafile=certificate[0])


async def test_mail_over_tls_is_mail(pool, serving, certificate):
    """STARTTLS is offered once, EHLO is asked for again, and bytes arrive as they were sent."""
    large = b"".join(b"%07d %s\r\n" % (n, b"x" * 60) for n in range(40_000))
    async with serving(pool, certificate=certificate) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            assert "250-STARTTLS" in (await client.ask("EHLO client.example")).split("\n")
            agreed = await client.start_tls(trusting(certificate))
            assert agreed.version() in ("TLSv1.2", "TLSv1.3")
            assert agreed.compression() is None
            assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "503"
            assert "STARTTLS" not in (await client.ask("EHLO client.example"))
            for raw in (b"small\r\n", large, b"again\r\n"):
                assert (await client.deliver(raw, bob))[:3] == "250"
            await client.send(b"QUIT\r\nNOOP\r\n")
            assert await client.replies() == ["221 2.0.0 Bye"]
        assert [raw for _, _, raw in await service.stored()] == [b"small\r\n", large, b"again\r\n"]


@pytest.mark.parametrize("size", [1, 7, 100])
async def test_records_may_be_cut_anywhere(pool, serving_here, certificate, size):
    """The handshake and a transaction in pieces of some bytes are what they are in one."""
    async with serving_here(pool, certificate=certificate) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            client.stream = Sliced(client.stream, size)
            await client.start_tls(trusting(certificate))
            assert (await client.ask("EHLO client.example"))[:3] == "250"
            assert (await client.deliver(b"text\r\n", bob))[:3] == "250"
        assert [raw for _, _, raw in await service.stored()] == [b"text\r\n"]


class Sliced(trio.abc.Stream):
    """A stream that sends a few bytes at a time."""

    def __init__(self, stream: trio.abc.Stream, size: int) -> None:
        self._stream = stream
        self._size = size

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        for at in range(0, len(data), self._size):
            await self._stream.send_all(data[at : at + self._size])
            await trio.sleep(0.0002)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_pipelined_commands_and_mail_in_one_record(pool, serving, certificate):
    """A group of commands, and what follows the dot, are answered in order."""
    async with serving(pool, certificate=certificate) as service:
        bob = await service.mailbox()
        group = b"MAIL FROM:<a@b.example>\r\nRCPT TO:<%b>\r\nDATA\r\n" % bob.encode()
        async with service.client() as client:
            await client.start_tls(trusting(certificate))
            await client.send(b"EHLO c\r\n" + 2 * (group + b"x\r\n.\r\n") + b"QUIT\r\n")
            replies = [reply[:3] for reply in await client.replies()]
        assert replies == ["250", *(["250", "250", "354", "250"] * 2), "221"]
        assert len(await service.stored()) == 2


async def test_what_stands_behind_starttls_is_never_obeyed(pool, serving, certificate):
    """Commands in the segment of STARTTLS are dropped: no reply, no greeting, no transaction."""
    async with serving(pool, certificate=certificate) as service:
        bob = await service.mailbox()
        behind = (
            b"EHLO evil.example\r\nMAIL FROM:<evil@b.example>\r\nRCPT TO:<%b>\r\nDATA\r\n"
            b"evil\r\n.\r\nMAIL FROM:<evil@b.example>\r\n" % bob.encode()
        )
        async with service.client() as client:
            await client.start_tls(trusting(certificate), behind=behind)
            assert await client.silent()
            assert (await client.ask("MAIL FROM:<a@b.example>"))[:3] == "503"
            assert (await client.ask("EHLO client.example"))[:3] == "250"
            assert (await client.deliver(b"good\r\n", bob))[:3] == "250"
        assert [(path, raw) for _, path, raw in await service.stored()] == [
            ("a@b.example", b"good\r\n")
        ]


async def test_what_comes_instead_of_a_handshake_ends_the_session(pool, serving, certificate):
    """In a segment of its own it is no handshake: an alert of TLS at most, and no reply."""
    async with serving(pool, certificate=certificate) as service:
        bob = await service.mailbox()
        async with service.client() as client:
            assert (await client.ask("STARTTLS"))[:3] == "220"
            with contextlib.suppress(trio.BrokenResourceError):
                await client.send(
                    b"EHLO evil.example\r\nMAIL FROM:<evil@b.example>\r\n"
                    b"RCPT TO:<%b>\r\nDATA\r\nevil\r\n.\r\n" % bob.encode()
                )
            assert not await _heard_in_clear(client.stream)
        assert await service.stored() == []


async def _heard_in_clear(stream: trio.abc.Stream) -> bytes:
    """Read to the end, and return what is no record of TLS."""
    heard = b""
    with contextlib.suppress(trio.BrokenResourceError):
        while chunk := await stream.receive_some(65536):
            heard += chunk
    while heard[:1] in (b"\x15", b"\x16", b"\x17"):
        heard = heard[5 + int.from_bytes(heard[3:5], "big") :]
    return heard


@pytest.mark.parametrize(
    ("before", "command", "reply"),
    [
        (["EHLO c"], "STARTTLS now", "501 5.5.4"),
        ([], "STARTTLS", "503 5.5.1"),
        (["HELO c"], "STARTTLS", "503 5.5.1"),
        (["EHLO c", "MAIL FROM:<a@b.example>"], "STARTTLS", "503 5.5.1"),
    ],
)
async def test_out_of_order(pool, serving_here, certificate, before, command, reply):
    """What may not begin TLS now is refused, and the session goes on in clear."""
    made = serving_here(pool, certificate=certificate)
    async with made as service, service.raw_client() as client:
        await client.reply()
        for line in before:
            assert (await client.ask(line))[:3] == "250"
        assert (await client.ask(command))[:9] == reply
        assert (await client.ask("NOOP"))[:3] == "250"


async def test_a_second_time(pool, serving, certificate):
    """STARTTLS in TLS is refused, and the session goes on."""
    async with serving(pool, certificate=certificate) as service, service.client() as client:
        await client.start_tls(trusting(certificate))
        assert (await client.ask("EHLO c"))[:3] == "250"
        assert (await client.ask("STARTTLS"))[:9] == "503 5.5.1"
        assert (await client.ask("NOOP"))[:3] == "250"


async def test_without_a_certificate_it_is_neither_offered_nor_known(pool, serving):
    """EHLO does not name it, and it is answered 502."""
    async with serving(pool) as service, service.client() as client:
        assert "STARTTLS" not in (await client.ask("EHLO c"))
        assert (await client.ask("STARTTLS"))[:9] == "502 5.5.1"


async def test_a_process_that_finds_no_good_certificate_says_so(pool, certificate):
    """It offers STARTTLS and answers 454, until there is one: nobody is led to send in clear."""
    file = trio.Path(certificate[0])
    good = await file.read_bytes()
    await file.write_bytes(b"nothing")
    made = services.serving_by_loaded_processes(pool, count=1, certificate=certificate)
    async with made as service, service.client() as client:
        assert "STARTTLS" in (await client.ask("EHLO c"))
        assert (await client.ask("STARTTLS"))[:9] == "454 4.7.0"
        await file.write_bytes(good)

        async def answer() -> str:
            return await client.ask("STARTTLS")

        await eventually(answer, "it is taken up", until=lambda got: got[:3] == "220")


async def test_old_versions_are_refused(pool, serving, certificate):
    """A client that knows TLS 1.1 at most gets an alert, and nothing in clear."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    async with serving(pool, certificate=certificate) as service, service.client() as client:
        with pytest.raises(trio.BrokenResourceError) as caught:
            await client.start_tls(old)
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        assert caught.value.__cause__.reason == "TLSV1_ALERT_PROTOCOL_VERSION"


@pytest.mark.parametrize("hello", [b"", b"\x16\x03\x01", b"half"])
async def test_a_stalled_handshake_ends_in_time(pool, serving, certificate, hello):
    """Without a word, with the beginning of one, or with half a ClientHello: nothing is said in
    clear, and others are served meanwhile."""
    limits = SmtpLimits(handshake_timeout=0.5)
    if hello == b"half":
        hello = client_hello()[:-10]
    async with serving(pool, certificate=certificate, limits=limits) as service:
        bob = await service.mailbox()
        async with service.client() as client, service.client() as other:
            assert (await client.ask("STARTTLS"))[:3] == "220"
            await client.send(hello)
            assert (await other.deliver(b"x\r\n", bob))[:3] == "250"
            assert await _heard_in_clear(client.stream) == b""


async def test_a_handshake_that_drips_ends_in_time(pool, serving, certificate):
    """Bytes buy no time."""
    limits = SmtpLimits(handshake_timeout=0.5)
    made = serving(pool, certificate=certificate, limits=limits)
    async with made as service, service.client() as client:
        assert (await client.ask("STARTTLS"))[:3] == "220"
        with pytest.raises(trio.BrokenResourceError):
            for byte in client_hello()[:-10]:
                await client.send(bytes([byte]))
                await trio.sleep(0.05)


async def test_an_endless_handshake_ends(pool, serving, certificate):
    """A peer that fills its handshake with ever more is sent away."""
    async with serving(pool, certificate=certificate) as service, service.client() as client:
        assert (await client.ask("STARTTLS"))[:3] == "220"
        with pytest.raises(trio.BrokenResourceError):
            while True:  # a handshake message of 16 MB, in records
                await client.send(b"\x16\x03\x01\x40\x00" + b"\x01\xff\xff\xff" + bytes(16380))
                await trio.sleep(0.01)


def client_hello() -> bytes:
    """The first words of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    out = ssl.MemoryBIO()
    tls = context.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return out.read()


async def test_a_peer_that_reads_nothing_in_tls_is_cut_off(pool, serving, certificate):
    """As one in clear."""
    limits = SmtpLimits(reply_timeout=0.5, max_idle_commands=10**9)
    made = serving(pool, certificate=certificate, limits=limits)
    async with made as service, service.client() as client:
        await client.start_tls(trusting(certificate))
        assert (await client.ask("EHLO c"))[:3] == "250"
        with pytest.raises(trio.BrokenResourceError):
            while True:
                await client.send(b"HELP\r\n" * 1000)


async def test_a_new_certificate_is_taken_up_and_open_sessions_go_on(pool, serving, tmp_path):
    """While nobody is there, without a word to the relay; whoever comes sees the new one.  At once
    when it is told to, and whoever is there goes on with the one before."""
    files = write(tmp_path)
    with kept() as lines:
        async with serving(pool, certificate=files) as service:

            def loaded() -> int:
                return [line["event"] for line in lines].count("tls.certificate_loaded")

            assert service.certificate is not None
            first = 0 if service.certificate.context else 1  # another process says so at its start
            await eventually(loaded, "it is there", until=lambda count: count == first)
            wanted = serial(write(tmp_path)[0])
            await eventually(loaded, "it is taken up", until=lambda count: count > first)
            assert await shown(service) == wanted, "to the first who comes"
            bob = await service.mailbox()
            async with service.client() as client:
                await client.start_tls(trusting(files))
                assert (await client.ask("EHLO c"))[:3] == "250"
                await client.begin(bob)
                await client.send(b"begun ")
                wanted = serial(write(tmp_path)[0])
                service.certificate.reload()

                async def seen() -> int:
                    return await shown(service)

                await eventually(seen, "it is shown", until=lambda found: found == wanted)
                assert (await client.ask(b"and ended\r\n."))[:3] == "250"
            assert [raw for _, _, raw in await service.stored()] == [b"begun and ended\r\n"]


async def shown(service: services.Service) -> int:
    """The serial number of the certificate that a new session is shown."""
    anyone = ssl.create_default_context()
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    async with service.client() as client:
        agreed = await client.start_tls(anyone)
        made = agreed.getpeercert(binary_form=True)
        assert made is not None
        return x509.load_der_x509_certificate(made).serial_number


# ------------------------------------------------------------------------ others' clients


async def test_smtplib(pool, serving, certificate):
    """Python's own."""
    async with serving(pool, certificate=certificate) as service:
        bob = await service.mailbox()

        def send() -> None:
            with smtplib.SMTP("localhost", service.port) as client:
                client.starttls(context=trusting(certificate))
                client.sendmail("a@b.example", [bob], b"Subject: x\r\n\r\ntext\r\n")

        await trio.to_thread.run_sync(send)
        assert [raw for _, _, raw in await service.stored()] == [b"Subject: x\r\n\r\ntext\r\n"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
@pytest.mark.parametrize(
    ("options", "good"),
    [
        (["-tls1_3"], True),
        (["-tls1_2"], True),
        (["-tls1_2", "-fallback_scsv"], False),  # somebody has made it give up the newer one
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], False),
        (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], False),
        (["-tls1_2", "-cipher", "NULL:aNULL:LOW:EXP:RC4:3DES:@SECLEVEL=0"], False),
    ],
)
async def test_openssl(pool, serving_here, certificate, options, good):
    """Versions and ciphers that are worth something, and no others."""
    async with serving_here(pool, certificate=certificate) as service:
        trust = ("-CAfile", certificate[0], "-verify_return_error", "-quiet", "-no_ign_eof")
        status, said = await s_client(service, *trust, *options, say=b"EHLO c\r\nQUIT\r\n")
        assert (status == 0) == good, said


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
async def test_no_renegotiation(pool, serving_here, certificate):
    """A client of TLS 1.2 that asks for new keys is refused."""
    async with serving_here(pool, certificate=certificate) as service:
        _, said = await s_client(service, "-tls1_2", say=b"R\n")
        assert b"no renegotiation" in said


async def s_client(service: services.Service, *options: str, say: bytes) -> tuple[int, bytes]:
    """Run OpenSSL's client; return its exit status, and what it said of errors."""
    address = f"127.0.0.1:{service.port}"
    done = await trio.run_process(
        ["openssl", "s_client", "-connect", address, "-starttls", "smtp", *options],
        stdin=say,
        capture_stdout=True,
        capture_stderr=True,
        check=False,
    )
    return done.returncode, done.stderr
