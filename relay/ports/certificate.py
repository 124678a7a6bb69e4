"""The certificate that this relay's own ports show, and how a new one is taken up.

A `Certificate` is two PEM files and the context made of them.  Whoever begins a TLS session takes
`context` as it is then; sessions that are open keep the one that they began with.

Promises:
- TLS 1.2 or later, with keys of each session's own and ciphers that authenticate what they encrypt;
  no renegotiation and no compression.
- A changed file is taken up by `watch`, whether or not there are sessions, two looks after it has
  changed, and by `reload` at once.  One that is being written, or has come without its other half,
  is left alone until both have stayed as they are from one look to the next.
- Files that are of no use, once a certificate was loaded, change nothing: that is said in the log,
  once, and the old one serves on.

Fails: `load` with `ConfigError`, for the start.

Why not at each handshake: what is no good is said when it comes and not when somebody calls, and
two halves that are replaced one after another are told from two that do not belong together.  A
look takes two calls of stat(2), four microseconds.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from typing import NoReturn, TypeAlias

import trio

from relay.errors import ConfigError
from relay.log import get_logger

log = get_logger()

LOOK_EVERY = 1.0
"""Seconds between two looks at the files."""

_SUITES = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20"

_Signature: TypeAlias = tuple[tuple[int, int, int, int] | None, ...]


class Certificate:
    """A certificate and its key, in PEM files; nothing is read until `reload`."""

    def __init__(self, cert: str, key: str) -> None:
        self.cert, self.key = cert, key
        self.context: ssl.SSLContext | None = None
        """What a TLS session on a port of ours is begun with; None: there is none that is good."""
        self._tried: _Signature | None = None  # what was loaded last, or was no good
        self._seen: _Signature | None = None  # at the last look
        self._reload_asked = trio.Event()

    @classmethod
    def load(cls, cert: str, key: str) -> Certificate:
        """Return it loaded; raises `ConfigError`, in a sentence that says what to change."""
        made = cls(cert, key)
        fault = made._load()
        if fault:
            raise ConfigError(
                f"RELAY_SMTP__TLS_CERT ({cert}) and RELAY_SMTP__TLS_KEY ({key}) are no certificate"
                f" with its key: {fault}."
            )
        return made

    def reload(self) -> None:
        """Read the files now, whatever is there."""
        self._take_up()
        asked, self._reload_asked = self._reload_asked, trio.Event()
        asked.set()

    async def reload_asked(self) -> None:
        """Wait until somebody calls `reload`: other processes show the same files."""
        await self._reload_asked.wait()

    async def watch(self, every: float = LOOK_EVERY) -> NoReturn:
        """Look at the files every so many seconds, until cancelled.

        One task of a process does, whatever ports show it.
        """
        while True:
            await trio.sleep(every)
            self.look()

    def look(self) -> None:
        """Take up files that have changed, and have not since the last look."""
        signature = self._signature()
        settled, self._seen = signature == self._seen, signature
        if settled and signature != self._tried:
            self._take_up()

    def _take_up(self) -> None:
        fault = self._load()
        if fault:
            log.error("tls.certificate_refused", cert=self.cert, key=self.key, reason=fault)
        else:
            log.info("tls.certificate_loaded", cert=self.cert)

    def _signature(self) -> _Signature:
        return tuple(_state(path) for path in (self.cert, self.key))

    def _load(self) -> str:
        """Take up the files; return what is wrong with them, if anything is."""
        self._tried = self._signature()
        try:
            self.context = server_context(self.cert, self.key)
        except OSError as error:  # ssl.SSLError is one
            return _fault(error, self.cert, self.key)
        return ""


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """Return what a server's TLS is made with; OSError (ssl.SSLError is one) for bad files."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_SUITES)  # of TLS 1.2; those of 1.3 are all of this kind
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    # Without a password of ours OpenSSL would ask the terminal for that of an encrypted key.
    context.load_cert_chain(cert, key, password=lambda: "")
    return context


def _state(path: str) -> tuple[int, int, int, int] | None:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size
    return None


def _fault(error: OSError, *paths: str) -> str:
    for path in paths:
        try:
            with open(path, "rb"):
                pass
        except OSError as unreadable:
            return f"{path} cannot be read ({unreadable.strerror})"
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is not that of the certificate"
        return (error.reason or "they cannot be read as PEM").lower().replace("_", " ")
    return error.strerror or str(error)
