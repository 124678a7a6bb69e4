"""`relay device`: keys, and clients of the device inbox, over the wire as devices speak it."""

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

if TYPE_CHECKING:
    from relay.devices.client import Delivery
    from relay.devices.noise import KeyPair

CONNECT_TIMEOUT = 10.0  # seconds
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
        from relay.settings import parse_address

        try:
            return parse_address(value)
        except ValueError as error:
            self.fail(f"{value!r}: {error}.", param, ctx)


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
@click.option("--to", required=True, type=Hex32(), metavar="HEX", help="The device's public key.")
@relay_address
@relay_key
@options.data_dir
@options.as_json
def put(
    file: Any,
    to: bytes,
    relay: tuple[str, int] | None,
    relay_key: bytes | None,
    data_dir: Path,
    as_json: bool,
) -> None:
    """Push FILE (- or nothing: standard input) as one blob into a device's inbox.

    Returns when the relay has said that the blob is durable. Exit code 1 when it refused, with the
    reason and, where trying again makes sense, when.
    """
    from relay.devices.client import Pusher, RefusedByRelay

    envelope = file.read(MAX_ENVELOPE + 1)
    if len(envelope) > MAX_ENVELOPE:
        raise Failure(f"A blob has at most {MAX_ENVELOPE} bytes.")
    if relay is not None and relay_key is None:
        raise Failure("With --relay, say --relay-key too.", exits.USAGE)
    if relay is None:
        relay, known = _find(data_dir, "devices_push")
        relay_key = relay_key or known
    assert relay_key is not None
    began = time.monotonic()
    try:
        with _explained(relay), Pusher(relay, relay_key, CONNECT_TIMEOUT) as session:
            session.push(to, envelope)
    except RefusedByRelay as refusal:
        raise Failure(_sentence("blob", refusal)) from refusal
    took = time.monotonic() - began
    if as_json:
        output.document({"to": to.hex(), "bytes": len(envelope), "acknowledged": True})
    else:
        output.say(f"{output.size(len(envelope))} acknowledged in {output.span(took)}")


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
            _explained(relay),
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
    from relay.settings import parse_address

    run = read_run(data_dir)
    if port not in run:
        raise Failure(
            f"The relay on {data_dir.absolute()} serves no devices (it runs without that role).",
            exits.UNAVAILABLE,
        )
    return parse_address(str(run[port])), bytes.fromhex(str(run["devices_key"]))


@contextmanager
def _explained(relay: tuple[str, int]) -> Iterator[None]:
    """Turn what fails on the network into a sentence."""
    try:
        yield
    except BrokenPipeError:
        raise  # our output's reader; a relay that has gone is a ConnectionError
    except OSError as error:
        host, port = relay
        why = f"{error.strerror or error}"
        raise Failure(f"The relay at {host}:{port}: {why}.", exits.UNAVAILABLE) from error


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
            with open(out / str(blob.id), "wb") as file:
                file.write(blob.envelope)
                file.flush()
                os.fsync(
                    file.fileno()
                )  # it is deleted over there as soon as we say that we have it
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
