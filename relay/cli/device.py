"""`relay device`: keys, and clients of the device inbox, over the wire as devices speak it.

Promises
  * `put` ends with 0 when the relay has the blob durably, or with an outbox when nothing waits in
    it any more.  What an outbox keeps is on this disk before anything is sent.
  * `receive` acknowledges a blob when it was written: with `--out` when file and name are on the
    disk, for the relay deletes it then.
  * Private keys are printed by `keygen` alone.

Fails with one sentence and an exit code (`relay.cli.exits`): 1 refused, 69 no relay, 75 kept.
"""

from __future__ import annotations

import json
import os
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from relay.cli import exits, options, output
from relay.cli.client import read_run
from relay.cli.exits import Failure
from relay.files import sync_directory

if TYPE_CHECKING:
    from relay.devices.client import Delivery, Pusher
    from relay.devices.noise import KeyPair

CONNECT_TIMEOUT = 10.0  # seconds
PUSH_TIMEOUT = 30.0  # seconds, of one blob over HTTP
ACK_TIMEOUT = 30.0  # seconds
MAX_ENVELOPE = 65_482  # bytes; that of relay.devices.wire, which is slow to import
PREVIEW = 60  # characters


class Hex32(click.ParamType[bytes]):
    """32 bytes as 64 hexadecimal digits."""

    name = "key"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        """Return the bytes, or fail with a sentence."""
        try:
            key = bytes.fromhex(value)
        except ValueError:
            key = b""
        if len(key) != 32 or len(value) != 64:
            self.fail("a key is 64 hexadecimal digits.", param, ctx)
        return key


class Address(click.ParamType[tuple[str, int]]):
    """`host:port`."""

    name = "address"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        """Return host and port, or fail with a sentence."""
        from relay.settings import parse_endpoint

        try:
            return parse_endpoint(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


class Relay(Address):
    """`host:port` of a push port, or the URL of a relay's HTTP."""

    name = "relay"

    def convert(  # type: ignore[override]
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int] | str:
        """Return host and port, or the URL; or fail with a sentence."""
        return (
            value
            if value.startswith(("http://", "https://"))
            else super().convert(value, param, ctx)
        )


class Duration(click.ParamType[float]):
    """Seconds, or a number with ms, s, m, h or d."""

    name = "duration"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds, or fail with a sentence."""
        from relay.settings import duration

        try:
            seconds = duration(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)
        if seconds <= 0:
            self.fail("it is above 0.", param, ctx)
        return seconds


relay_address = click.option(
    "--relay",
    type=Address(),
    metavar="HOST:PORT",
    help="Another relay's port; else the relay on the data directory.",
)
relay_key = click.option(
    "--relay-key",
    type=Hex32(),
    metavar="HEX",
    help="That relay's public key (`devices_key` in its run/relay.json).",
)


@click.group()
def device() -> None:
    """The device inbox: make keys, put blobs, receive them."""


@device.command()
@click.option("--json", "as_json", is_flag=True, help="Always so; for symmetry.")
def keygen(as_json: bool) -> None:
    """Make a device's key pair and print it as JSON; `relay device receive --key` reads it.

    The public half is the address of the device's inbox. Keep the private half to yourself.
    """
    from relay.devices.noise import KeyPair

    pair = KeyPair.generate()
    output.document({"private": pair.private_bytes().hex(), "public": pair.public.hex()})


@device.command()
@click.argument("file", type=click.File("rb"), default="-")
@click.option("--to", type=Hex32(), metavar="HEX", help="The device's public key.")
@click.option(
    "--ttl",
    type=Duration(),
    metavar="D",
    help="Keep it no longer than this (30m, 2d); goes over HTTP.",
)
@click.option(
    "--outbox",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep it here until a relay has it, and push what waits here already, in order.",
)
@click.option("--flush", is_flag=True, help="Put nothing: only push what waits in the outbox.")
@click.option(
    "--relay",
    type=Relay(),
    metavar="HOST:PORT|URL",
    help="Another relay's push port, or its HTTP; else the relay on the data directory.",
)
@relay_key
@options.data_dir
@options.as_json
def put(
    file: Any,
    to: bytes | None,
    ttl: float | None,
    outbox: Path | None,
    flush: bool,
    relay: tuple[str, int] | str | None,
    relay_key: bytes | None,
    data_dir: Path,
    as_json: bool,
) -> int:
    """Push FILE (- or nothing: standard input) as one blob into a device's inbox.

    Returns when the relay has said that the blob is durable. Exit code 1 when it refused, with the
    reason and, where trying again makes sense, when.

    With --outbox the blob is kept on this disk first: whatever becomes of relay, network and this
    command, it is pushed by a later call with the same outbox, after what was kept before it. Exit
    code 0 when nothing waits there any more; 75 when something does; 1 when a blob was refused for
    good, or expired, and was set aside (DIR/refused, with the reason). A blob may come twice.
    """
    if flush and outbox is None:
        raise click.UsageError("--flush needs --outbox.")
    if flush and (to is not None or ttl is not None):
        raise click.UsageError("--flush puts nothing: it takes no --to and no --ttl.")
    if not flush and to is None:
        raise click.UsageError("Missing option '--to'.")
    if isinstance(relay, tuple):
        if relay_key is None:
            raise Failure("With --relay, say --relay-key too.", exits.USAGE)
        if ttl is not None:
            raise Failure(
                "The frames of a push session have no place for a time to live: name the relay by "
                "its URL (--relay http://…).",
                exits.USAGE,
            )
    way = _Way(relay, relay_key, data_dir)
    if flush:
        assert outbox is not None
        return _replay(outbox, way, None, as_json)
    assert to is not None
    envelope = file.read(MAX_ENVELOPE + 1)
    if len(envelope) > MAX_ENVELOPE:
        raise Failure(f"A blob has at most {MAX_ENVELOPE} bytes.")
    if outbox is not None:
        return _replay(outbox, way, (to, envelope, ttl), as_json)
    _put(way, to, envelope, ttl, as_json)
    return exits.OK


def _put(way: _Way, to: bytes, envelope: bytes, ttl: float | None, as_json: bool) -> None:
    from relay.devices.client import RefusedByRelay

    began = time.monotonic()
    try:
        with way, _explained(way.name):
            way.push(to, envelope, ttl)
    except RefusedByRelay as refusal:
        raise Failure(_sentence("blob", refusal)) from refusal
    took = time.monotonic() - began
    if as_json:
        output.document({"to": to.hex(), "bytes": len(envelope), "acknowledged": True})
    else:
        output.say(f"{output.size(len(envelope))} acknowledged in {output.span(took)}")


def _replay(
    directory: Path, way: _Way, new: tuple[bytes, bytes, float | None] | None, as_json: bool
) -> int:
    """Keep a new blob, push what waits, say what became of it, and return the exit code."""
    from relay.devices.outbox import Outbox

    outbox = Outbox(directory)
    try:
        number = None if new is None else outbox.keep(*new)
        with way:
            done = outbox.replay(way.replay)
    except OSError as error:
        raise Failure(
            f"The outbox {directory} cannot be used: {error.strerror or error}."
        ) from error
    if number is not None and (why := outbox.refusal(number)) is not None:
        done.refused.setdefault(number, why)  # by another process that was at it
    if as_json:
        output.document(
            {
                "number": number,
                "acknowledged": number is not None
                and number not in done.refused
                and number not in outbox.numbers(),
                "pushed": len(done.pushed),
                "waiting": done.waiting,
                "refused": [{"number": one, "reason": why} for one, why in done.refused.items()],
                "trouble": done.trouble,
            }
        )
    else:
        output.say(f"{len(done.pushed)} pushed, {done.waiting} waiting in {directory}")
        for one, why in done.refused.items():
            output.note(f"{one} was set aside: {why}")
        if done.trouble is not None:
            output.note(f"what waits is pushed by a later call: {done.trouble}")
    if done.refused:
        return exits.REFUSED
    return exits.KEPT if done.waiting else exits.OK


class _Way:
    """How blobs get to a relay: a push session, which is kept, or HTTP where a blob needs it.

    `relay` is a push port, or a URL; None: the relay on the data directory, which is looked for
    when there is something to push.
    """

    def __init__(
        self, relay: tuple[str, int] | str | None, relay_key: bytes | None, data_dir: Path
    ) -> None:
        self._relay = relay
        self._key = relay_key
        self._data_dir = data_dir
        self._url = relay if isinstance(relay, str) else None
        self._session: Pusher | None = None

    def __enter__(self) -> _Way:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()

    @property
    def name(self) -> str:
        """What the relay is called in a sentence."""
        if isinstance(self._relay, tuple):
            return f"The relay at {self._relay[0]}:{self._relay[1]}"
        return f"The relay at {self._relay}" if self._relay else f"The relay on {self._data_dir}"

    def push(self, to: bytes, envelope: bytes, ttl: float | None) -> None:
        """Push one blob.  `RefusedByRelay`, `OSError`; `Failure` where no relay can be found."""
        from relay.devices.client import Pusher
        from relay.devices.posting import BlobPoster

        if ttl is not None or self._url is not None:
            if self._url is None:
                if isinstance(self._relay, tuple):
                    raise Failure("It has a time to live: name the relay by its URL.", exits.USAGE)
                self._url = self._found_url()
            BlobPoster(self._url, PUSH_TIMEOUT).push(to, envelope, ttl)
            return
        if self._session is None:
            address, key = self._relay, self._key
            if not isinstance(address, tuple):
                address, known = _find(self._data_dir, "devices_push")
                key = key or known
            assert key is not None
            self._session = Pusher(address, key, CONNECT_TIMEOUT)
        self._session.push(to, envelope)

    def replay(self, to: bytes, envelope: bytes, ttl: float | None) -> None:
        """Push one blob for an outbox, in its terms."""
        from relay.devices.client import RefusedByRelay
        from relay.devices.outbox import Never, NotNow
        from relay.devices.wire import Reason

        try:
            self.push(to, envelope, ttl)
        except RefusedByRelay as refusal:
            if not refusal.temporary:
                raise Never(f"the relay refused it: {refusal}") from refusal
            everybody = refusal.reason == Reason.UNAVAILABLE
            raise NotNow(_sentence("blob", refusal), everybody=everybody) from refusal
        except Failure as failure:
            raise NotNow(str(failure), everybody=failure.code != exits.USAGE) from failure

    def _found_url(self) -> str:
        run = read_run(self._data_dir)
        if "http" not in run:
            raise Failure(
                f"The relay on {self._data_dir.absolute()} serves no HTTP, which a time to live "
                "needs (it runs without control).",
                exits.UNAVAILABLE,
            )
        return str(run["http"])


@device.command()
@click.option(
    "--key",
    required=True,
    metavar="FILE|HEX",
    help="The device's private key: a file as `keygen` writes it, - for standard input, or 64 "
    "hexadecimal digits (which other users of this machine can see).",
)
@click.option("--count", type=click.IntRange(1), metavar="N", help="End after so many blobs.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    metavar="S",
    help="End when nothing has come for so many seconds.",
)
@click.option("-f", "--follow", is_flag=True, help="Do not end: wait for what comes.")
@click.option("--no-ack", is_flag=True, help="Acknowledge nothing: the blobs come again.")
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write each blob to DIR/ID.",
)
@relay_address
@relay_key
@options.data_dir
@click.option("--json", "as_json", is_flag=True, help="One JSON document a line, for programs.")
def receive(
    key: str,
    count: int | None,
    wait: float,
    follow: bool,
    no_ack: bool,
    out: Path | None,
    relay: tuple[str, int] | None,
    relay_key: bytes | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Receive what waits for a device, acknowledge it, and show it.

    A blob is acknowledged when it was written, never before. With --json each line is
    {"id", "bytes", "envelope"} (base64), or {"missed": N} for what expired before. A relay named
    with --relay and without --relay-key is taken at its word.
    """
    from relay.devices.client import Missed, Receiver, RefusedByRelay

    pair = _read_key(key)
    if relay is None:
        relay, known = _find(data_dir, "devices_receive")
        relay_key = relay_key or known
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    left = count
    try:
        with (
            _explained(f"The relay at {relay[0]}:{relay[1]}"),
            Receiver(relay, pair, relay_key, CONNECT_TIMEOUT) as session,
        ):
            acknowledged = False
            while left is None or left > 0:
                try:
                    got = session.receive(3600.0 if follow else wait)
                except TimeoutError:
                    if follow:
                        continue
                    break
                if isinstance(got, Missed):
                    _say_missed(got.blobs, as_json)
                    continue
                _show(got, out, as_json)
                if not no_ack:
                    session.acknowledge(got.id)
                    acknowledged = True
                left = None if left is None else left - 1
            if acknowledged:
                session.settle(ACK_TIMEOUT)
    except RefusedByRelay as refusal:
        raise Failure(_sentence("session", refusal)) from refusal
    if left:
        raise Failure(f"{left} of {count} blobs did not come within {wait:g} s.")


def _find(data_dir: Path, port: str) -> tuple[tuple[str, int], bytes]:
    """Return address and key of the relay that runs on `data_dir`."""
    from relay.settings import parse_endpoint

    run = read_run(data_dir)
    if port not in run:
        raise Failure(
            f"The relay on {data_dir.absolute()} serves no devices (it runs without that role).",
            exits.UNAVAILABLE,
        )
    return parse_endpoint(str(run[port])), bytes.fromhex(str(run["devices_key"]))


@contextmanager
def _explained(relay: str) -> Iterator[None]:
    """Turn what fails on the network into a sentence."""
    try:
        yield
    except BrokenPipeError:
        raise  # our output's reader; a relay that has gone is a ConnectionError
    except OSError as error:
        why = f"{error.strerror or error}"
        raise Failure(f"{relay}: {why}.", exits.UNAVAILABLE) from error


def _sentence(what: str, refusal: Any) -> str:
    text = f"The relay refused the {what}: {refusal}"
    return f"{text}; try again in {refusal.retry_after} s." if refusal.temporary else f"{text}."


def _read_key(text: str) -> KeyPair:
    from relay.devices.noise import KeyPair

    if len(text) != 64 or Path(text).exists():
        try:
            content = sys.stdin.read() if text == "-" else Path(text).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Failure(
                f"{text} is no key, and no file that can be read.", exits.USAGE
            ) from error
        try:
            document = json.loads(content)
            text = document["private"] if isinstance(document, dict) else content
        except ValueError:
            text = content
        except KeyError as error:
            raise Failure("The file holds no private key.", exits.USAGE) from error
    try:
        raw = bytes.fromhex(str(text).strip())
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise Failure(
            "A private key is 64 hexadecimal digits, or JSON as `relay device keygen` prints it.",
            exits.USAGE,
        )
    return KeyPair.from_private(raw)


def _say_missed(count: int, as_json: bool) -> None:
    if as_json:
        _line({"missed": count})
    else:
        output.note(f"{count} blobs expired before this device came")


def _show(blob: Delivery, out: Path | None, as_json: bool) -> None:
    if out is not None:
        try:
            # On the disk, and its name too: it is deleted over there as soon as we say we have it.
            with open(out / str(blob.id), "wb") as file:
                file.write(blob.envelope)
                file.flush()
                os.fsync(file.fileno())
            sync_directory(out)
        except OSError as error:
            raise Failure(f"{out / str(blob.id)} cannot be written: {error.strerror}.") from error
    if as_json:
        envelope = b64encode(blob.envelope).decode()
        _line({"id": str(blob.id), "bytes": len(blob.envelope), "envelope": envelope})
        return
    text = output.line(blob.envelope[: 4 * PREVIEW].decode("utf-8", "backslashreplace"))
    preview = text if len(text) <= PREVIEW else text[: PREVIEW - 1] + "…"
    output.say(f"{blob.id}  {output.size(len(blob.envelope))}  {preview}".rstrip())


def _line(value: dict[str, Any]) -> None:
    output.say(json.dumps(value))
    sys.stdout.flush()
