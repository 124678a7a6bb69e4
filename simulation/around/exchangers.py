"""The servers that the relay hands its mail to, and how they misbehave."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Sequence

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, Talk
from simulation.history import ACTIVATION, RECOVERY, TEXT, Copy, Letter, Refusal
from simulation.keys import ANOTHER, OWN, serving
from simulation.places import NOBODY, SERVERS, SMTP, SUBMITS_FROM, UPSTREAM
from simulation.world import NODE

_MARKER = re.compile(rb"^Subject: (M-[\w-]+)", re.MULTILINE)
_LINK = re.compile(rb"/(activate|recover)\?token=([\w-]+)")
_CODE = re.compile(rb"enter this code: ([0-9]+)")
_LETTER = re.compile(rb"^Message-ID: <([^>]+)>", re.MULTILINE)


async def upstream(
    around: Around, host: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be a server that the relay hands mail to: the one in front of it, or an exchanger."""
    NODE.set(host)
    (listener,) = around.network.listen(host, UPSTREAM if host == SERVERS[0] else SMTP)
    async with trio.open_nursery() as nursery:
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            sock, peer = around.network.accept(listener)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            nursery.start_soon(_Conversation(around, stream, host, peer[0]).run)


_FAILED = re.compile(rb"^Final-Recipient: rfc822; *(\S+)\nAction: failed$", re.MULTILINE)
_DEFERRALS = (b"451 4.3.0 later", b"450 4.2.0 greylisted", b"452 4.3.1 no room")
_REFUSALS = (b"550 5.7.1 not from you", b"554 5.6.0 not such mail")
"""For reasons that are not the recipient's: nobody is put on a list for them."""
_OFFER_TLS = {"mx2": ssl.TLSVersion.TLSv1_3, "mx3": ssl.TLSVersion.TLSv1_2}
"""Servers that offer STARTTLS, and up to which version."""
_ATTACKS = ("strip", "strip", "certificate", "certificate", "refuse", "break", "stall")
_NO_TLS = (b"\x15\x03\x03\0\x02\x02\x28", b"220 what?\r\n")
"""In place of a handshake: the alert that it has failed, or nothing of TLS."""


class _Conversation:
    """One connection of a server; what fails is chosen by chance, at any step."""

    def __init__(self, around: Around, stream: trio.SocketStream, host: str, peer: str) -> None:
        self._around = around
        self._stream = stream
        self._talk = Talk(stream)
        self._rng = around.world.rng(host)
        self._host = host
        self._key = ""  # of the certificate that was shown
        self._attacked = ""
        self._peer = peer
        self._path: str | None = None  # of the last message
        self._recipient = ""
        self._began = around.world.now()
        self._plain = True  # nothing odd was done on this connection

    async def _misbehave(self, step: str) -> bytes | None:
        """Return what is said instead of yes, or None; may stall, may hang up."""
        around, rng = self._around, self._rng
        if not around.peers_fail or rng.random() > 0.4:
            return None
        hows = ["defer", "hang up", "stall", "slow", "close", "nonsense"]
        if step != "greeting":
            hows += ["refuse", "refuse"]
        how = rng.choice(hows)
        around.world.tell("upstream.misbehaves", step=step, how=how, recipient=self._recipient)
        self._plain = False
        if how == "nonsense":
            return rng.choice((b"what?\r\n", b"999 no\r\n", b"\0\xff\r\n", b"25" * 5000 + b"\r\n"))
        if how == "defer":
            return rng.choice(_DEFERRALS) + b"\r\n"
        if how == "refuse":
            return self._refuse(rng.choice(_REFUSALS))
        if how == "close":
            return b"421 4.3.2 closing\r\n"
        if how == "slow":
            await trio.sleep(rng.uniform(0.1, 20.0))
            return None
        if how == "stall":
            await trio.sleep(rng.uniform(60.0, 400.0))
        raise trio.BrokenResourceError("hung up")

    def _refuse(self, reply: bytes) -> bytes:
        """Put down that a recipient's mail is refused for good."""
        refusal = Refusal(self._recipient, self._around.world.now(), self._peer)
        self._around.history.refusals.append(refusal)
        self._around.busy(self._peer)
        return reply + b"\r\n"

    def _attack(self) -> str:
        """Return what is done to TLS on this connection; empty: nothing."""
        if not self._around.peers_fail or self._rng.random() > 0.4:
            return ""
        how = self._rng.choice(_ATTACKS)
        self._around.world.tell("upstream.misbehaves", step="tls", how=how)
        return how

    async def _secure(self) -> None:
        """Answer STARTTLS."""
        if self._attacked == "refuse":
            await self._talk.say(b"454 4.7.0 not now\r\n")
            return
        await self._talk.say(b"220 go on\r\n")
        if self._attacked == "stall":
            await trio.sleep(self._rng.uniform(60.0, 400.0))
        if self._attacked == "break":
            await self._stream.receive_some(65536)
            await self._talk.say(self._rng.choice(_NO_TLS))
            raise trio.BrokenResourceError("hung up")
        key = ANOTHER if self._attacked == "certificate" else OWN
        tls = trio.SSLStream(self._stream, serving(key, _OFFER_TLS[self._host]), server_side=True)
        await tls.do_handshake()
        self._talk, self._key = Talk(tls), key

    async def run(self) -> None:
        """Serve it until it ends."""
        async with self._stream:
            with contextlib.suppress(*BROKEN):
                greeting = await self._misbehave("greeting")
                await self._talk.say(greeting or b"220 upstream.example ESMTP\r\n")
                while await self._obey(await self._talk.line()):
                    pass

    async def _obey(self, line: bytes) -> bool:
        """Do what a command says; whether to go on."""
        talk, verb = self._talk, line[:4].upper()
        if verb == b"EHLO":
            offered = b"250-PIPELINING\r\n250 8BITMIME\r\n"
            if self._host in _OFFER_TLS and not self._key:
                self._attacked = self._attack()
                if self._attacked != "strip":
                    offered = b"250-STARTTLS\r\n" + offered
            await talk.say(b"250-upstream.example\r\n" + offered)
        elif line.upper() == b"STARTTLS" and self._host in _OFFER_TLS:
            await self._secure()
        elif verb == b"QUIT":
            await talk.say(b"221 bye\r\n")
            return False
        elif verb == b"MAIL":
            if self._path is not None:  # else its connection was opened for it
                self._began = self._around.world.now()
            self._path = line[11 : line.index(b">")].decode()
            await talk.say(b"250 ok\r\n")
        elif verb == b"RCPT":
            self._recipient = line[9:-1].decode()
            self._around.speaks_of(self._recipient, self._peer)
            answer = await self._misbehave("rcpt") or b"250 ok\r\n"
            if answer[:1] == b"2" and self._recipient.startswith(NOBODY):
                answer = self._refuse(_REFUSALS[0])
            if answer[:1] != b"2":
                self._recipient = ""
            await talk.say(answer)
        elif verb == b"DATA" and not self._recipient:
            await talk.say(b"503 no recipient\r\n")
        elif verb == b"DATA":
            await talk.say(b"354 go on\r\n")
            lines = []
            while (line := await talk.line()) != b".":
                lines.append(line)
            await self._take(lines)
            self._recipient = ""
        else:
            await talk.say(b"250 ok\r\n")
        return True

    async def _take(self, lines: Sequence[bytes]) -> None:
        around, recipient, raw = self._around, self._recipient, b"\n".join(lines)
        found = _MARKER.search(raw)
        marker = found.group(1).decode() if found else ""
        letter = _LETTER.search(raw)
        copy = Copy(
            marker, recipient, around.world.now(), told=False, node=self._peer,
            letter=letter.group(1).decode() if letter else "", server=self._host, key=self._key,
            began=self._began,
        )  # fmt: skip
        if recipient.endswith(f"@{SUBMITS_FROM}"):
            copy.failed = tuple(each.decode() for each in _FAILED.findall(raw))
        copy.whole = not marker.startswith("M-out") or TEXT.encode() in raw.splitlines()
        refusal = None
        if around.peers_fail > 0 and self._rng.random() < 0.03:
            around.world.tell("upstream.misbehaves", step="dot", how="lose")
            raise trio.BrokenResourceError("hung up, and has nothing")
        try:
            refusal = await self._misbehave("dot")
        finally:
            if refusal is None:  # it is kept, whether or not anybody is told
                copy.plain = self._plain
                around.history.copies.append(copy)
                if around.took is not None:
                    around.took(copy, self._path or "", lines)
                around.world.tell(
                    "message.delivered", marker=marker, recipient=recipient, key=self._key
                )
                around.busy(self._peer)
                if link := _LINK.search(raw):
                    self._bring(copy, link, _CODE.search(raw))
        await self._talk.say(refusal or b"250 ok\r\n")
        copy.told = True

    def _bring(self, copy: Copy, link: re.Match[bytes], code: re.Match[bytes] | None) -> None:
        """Let whom a letter is to have it."""
        action = RECOVERY if link.group(1) == b"recover" else ACTIVATION
        letter = Letter(
            copy.recipient, action, link.group(2).decode(),
            code.group(1).decode() if code else "", copy.at, copy.letter,
        )  # fmt: skip
        if all(each.id != letter.id for each in self._around.history.letters):
            self._around.letters.append(letter)
        self._around.history.letters.append(letter)
