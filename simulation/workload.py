"""Those around the relay: who sends mail in, who sends through it, signs up, leaves blobs, reads.

Each is a task on a host of its own, which goes on as its own chance says until it is told to stop,
and writes into the history what it was told and what it saw.  All speak to the nodes over the
simulated network, in the protocols that the nodes speak.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import ssl
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import trio

from simulation.day import after
from simulation.history import Answer, Blob, Copy, History, Mail, Mailbox, Refusal, Report
from simulation.keys import ANOTHER, OWN, serving
from simulation.network import Network
from simulation.node import (
    ADMIN_TOKEN,
    DOMAIN,
    HTTP,
    LEASE,
    LOOPBACK,
    PUSH,
    RECEIVE,
    SERVERS,
    SMTP,
    SUBMISSION,
    UPSTREAM,
    goes_direct,
)  # fmt: skip
from simulation.world import EPOCH, NODE, World

HOOKS = "hooks.example"
"""The host of whoever is told of mail."""

SUBMITS_FROM = "sender.example"
"""The domain of those who submit mail, to whom reports of it go."""

SOON = 1.0
"""Virtual seconds in which what was accepted is delivered, when nothing is wrong."""
PROBES = 3
"""How often each node is asked for that."""
_PATIENCE = 60.0  # seconds for an answer
_IN_HAND = 1.0  # seconds for which a node speaks of a message
_BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError)
_MARKER = re.compile(rb"^Subject: (M-[\w-]+)", re.MULTILINE)
_LETTER = re.compile(rb"^Message-ID: <([^>]+)>", re.MULTILINE)
_TOKEN = re.compile(rb"/activate\?token=([\w.%~-]+)")


class Around:
    """What all of them have in common."""

    def __init__(
        self, world: World, network: Network, history: History, hosts: Sequence[str]
    ) -> None:
        self.world = world
        self.network = network
        self.history = history
        self.hosts = hosts
        self.stopped = trio.Event()
        self.links: list[tuple[str, str]] = []
        """Tokens of activations that came by letter: of whom, and the token."""
        self.coming_back: list[tuple[str, Report]] = []
        """What servers have still to report, and of which return path."""
        self.took: Callable[[Copy, str, Sequence[bytes]], None] | None = None
        """Called with what a server took, with its return path and its lines."""
        self.peers_fail = 0
        """Faults for which those to whom the relay speaks misbehave now."""
        self._numbers = 0
        self._bringers: dict[str, tuple[str, float]] = {}  # recipient: who spoke of it last, when
        self._overtaken: dict[str, tuple[float, trio.Event]] = {}
        self._busy: dict[tuple[str, str], trio.Event] = {}

    def choose(self, rng: Any) -> str:
        """Return the host to speak to now."""
        host: str = rng.choice(self.hosts)
        self.busy(host)
        return host

    def busy(self, host: str) -> None:
        """Say that whoever's turn it is speaks to a host, or has just got something from it."""
        who = "upstream" if NODE.get() in SERVERS else NODE.get().rstrip("0123456789")
        for key in ((host, who), (host, ""), ("", who), ("", "")):
            if key in self._busy:
                self._busy.pop(key).set()

    async def wait_busy(self, host: str, who: str) -> None:
        """Wait until somebody (`who`: of that kind) is busy with a host; "": with any."""
        await self._busy.setdefault((host, who), trio.Event()).wait()

    def speaks_of(self, recipient: str, host: str) -> None:
        """Say that a host is about to hand over mail for somebody."""
        before, at = self._bringers.get(recipient, (host, 0.0))
        self._bringers[recipient] = host, self.world.now()
        since, overtaken = self._overtaken.get(before, (inf, None))
        # Sooner, and it had been deferred.
        lost = self.world.now() > since + LEASE and at >= since
        if before != host and lost and overtaken is not None:
            overtaken.set()

    async def wait_overtaken(self, host: str) -> None:
        """Wait until another hands over what this host was about to, a moment ago."""
        overtaken = trio.Event()
        self._overtaken[host] = self.world.now() - _IN_HAND, overtaken
        await overtaken.wait()

    def marker(self, kind: str) -> str:
        """Return a word that stands in one message only."""
        self._numbers += 1
        return f"M-{kind}-{self._numbers}"

    async def pause(self, rng: Any, mean: float) -> bool:
        """Wait a while (`mean`: busy seconds); whether to go on."""
        with trio.move_on_at(after(self.world.now(), rng.expovariate(1 / mean))):
            await self.stopped.wait()
        return not self.stopped.is_set()


class _Talk:
    """A connection that is read line by line."""

    def __init__(self, stream: trio.SocketStream | trio.SSLStream[trio.SocketStream]) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self.last = ""
        """The last line of the last reply."""

    async def line(self) -> bytes:
        while b"\n" not in self._buffer:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.BrokenResourceError("closed")
            self._buffer += data
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return line.rstrip(b"\r")

    async def exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.BrokenResourceError("closed")
            self._buffer += data
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def rest(self) -> bytes:
        while data := await self._stream.receive_some(65536):
            self._buffer += data
        return bytes(self._buffer)

    async def reply(self) -> int:
        """Read one SMTP reply and return its code."""
        while True:
            line = await self.line()
            if line[3:4] != b"-":
                self.last = line.decode(errors="replace")
                return int(line[:3])

    async def say(self, data: bytes) -> None:
        await self._stream.send_all(data)


class HttpFailed(Exception):
    """No answer came."""


async def call(
    around: Around, host: str, method: str, path: str, body: Any = None, *, token: str = ADMIN_TOKEN
) -> tuple[int, Any]:
    """Make a call; `HttpFailed` when no whole answer came."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: relay.example\r\nConnection: close\r\n"
        f"Authorization: Bearer {token}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(raw)}\r\n\r\n"
    )
    try:
        with trio.fail_after(_PATIENCE):
            async with await around.network.open_tcp_stream(host, HTTP) as stream:
                talk = _Talk(stream)
                await talk.say(head.encode() + raw)
                status = int((await talk.line()).split()[1])
                length = None
                while line := await talk.line():
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                rest = await talk.rest()
                if length is not None and len(rest) < length:
                    raise HttpFailed("cut short")
    except (*_BROKEN, ValueError, IndexError) as error:
        raise HttpFailed(type(error).__name__) from error
    try:
        return status, json.loads(rest) if rest else None
    except ValueError:
        return status, rest


# ------------------------------------------------------------------------------ mail that comes in


async def mail_client(around: Around, name: str, mean: float) -> None:
    """Send mail to mailboxes, one try after the other, or at once."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        if not around.history.mailboxes:
            continue
        mailbox = rng.choice(around.history.mailboxes)
        if mailbox.expires_at < around.world.now() - 30:
            mailbox = rng.choice(around.history.mailboxes)
        host = around.choose(rng) if rng.random() < 0.2 else ""
        mails = []
        for _ in range(4 if host else rng.choice((1, 1, 3))):
            marker = around.marker("in")
            size = rng.choice((10, 200, 2000, 70_000))
            raw = (
                f"From: <{name}@sender.example>\r\nTo: <{mailbox.address}>\r\n"
                f"Subject: {marker}\r\n\r\n" + "Hello, your code is 123456.\r\n" * (size // 29 + 1)
            ).encode()
            mails.append(Mail(marker, mailbox.address, raw))
        async with trio.open_nursery() as nursery:
            for mail in mails:
                if host:
                    nursery.start_soon(_send_in, around, rng, mail, host)
                else:
                    await _send_in(around, rng, mail)


async def _send_in(around: Around, rng: Any, mail: Mail, host: str = "") -> None:
    mail.asked_at = around.world.now()
    around.history.mail[mail.marker] = mail
    mail.answer, said = await hand_in(around, rng, mail, host)
    mail.answered_at = around.world.now()
    around.world.tell("mail.answered", marker=mail.marker, answer=mail.answer, said=said)


async def hand_in(
    around: Around, rng: Any, mail: Mail, host: str = "", *, sender: str = "client@sender.example"
) -> tuple[Answer, str]:
    """Hand a message to a node by SMTP; returns what came of it, and the step with its reply."""
    dot, host = False, host or around.choose(rng)
    try:
        with trio.fail_after(_PATIENCE):
            async with await around.network.open_tcp_stream(host, SMTP) as stream:
                talk = _Talk(stream)
                if (code := await talk.reply()) != 220:
                    return Answer.REFUSED, f"greeting {code}"
                for command in (
                    b"EHLO client.example",
                    b"MAIL FROM:<%s>" % sender.encode(),
                    b"RCPT TO:<%s>" % mail.address.encode(),
                    b"DATA",
                ):
                    await talk.say(command + b"\r\n")
                    code = await talk.reply()
                    if code >= 400:
                        return Answer.REFUSED, f"{command[:4].decode()} {code}"
                body = mail.raw.replace(b"\r\n.", b"\r\n..")
                await talk.say(body)
                if rng.random() < 0.1:
                    await trio.sleep(rng.uniform(0.0, 40.0))  # the mailbox may end meanwhile
                dot = True
                await talk.say(b".\r\n")
                code = await talk.reply()
                if code == 250:
                    around.history.ids.setdefault(mail.marker, []).append(talk.last.split()[-1])
                    return Answer.KEPT, "dot 250"
                # A commit whose answer was lost is 451, and may be there.
                return (Answer.DOUBT if code < 500 else Answer.REFUSED), f"dot {code}"
    except (*_BROKEN, ValueError) as error:
        return (Answer.DOUBT if dot else Answer.REFUSED), type(error).__name__


async def mailbox_maker(around: Around, name: str, mean: float) -> None:
    """Make mailboxes, most of which end soon, and look into those that have ended."""
    NODE.set(name)
    rng = around.world.rng(name)
    first = True
    while first or await around.pause(rng, mean):
        minutes = 10_000.0 if first else rng.choice((0.5, 2.0, 10.0, 10_000.0))
        first = False
        host = around.choose(rng)
        wanted: dict[str, Any] = {"ttl_minutes": minutes}
        if tells := rng.random() < 0.5:
            wanted["webhook_url"] = f"http://{HOOKS}/arrived"
        try:
            status, made = await call(around, host, "POST", "/api/v1/mailboxes", wanted)
        except HttpFailed:
            first = not around.history.mailboxes and not around.stopped.is_set()
            continue
        around.world.tell("mailbox.answered", status=status)
        if status != 201:
            first = not around.history.mailboxes and not around.stopped.is_set()
            await trio.sleep(1)
            continue
        expires_at = _virtual(made["expires_at"])
        around.history.mailboxes.append(Mailbox(made["address"], expires_at, tells))
        await _look_back(around, rng)


async def _look_back(around: Around, rng: Any) -> None:
    """A mailbox whose time is over shows nothing."""
    over = [m for m in around.history.mailboxes if m.expires_at < around.world.now()]
    if not over:
        return
    mailbox = rng.choice(over)
    try:
        status, _ = await call(
            around, around.choose(rng), "GET", f"/api/v1/mailboxes/{mailbox.address}/messages"
        )
    except HttpFailed:
        return
    if status == 200:
        around.history.shown_late.append(mailbox.address)


def _virtual(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp() - EPOCH


# ------------------------------------------------------------------------------- mail that goes out


async def program(around: Around, name: str, mean: float) -> None:
    """Send mail through the relay over HTTP, let people sign up, and recover their passwords."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        host = around.choose(rng)
        does = rng.random()
        if does < 0.3:
            email = f"{around.marker('acc').lower()}@people.example"
            answer = await _ask(
                around, host, "/api/v1/accounts", {"email": email, "login": email}, 201, email
            )
            around.history.accounts[email] = answer
            around.world.tell("account.answered", email=email, answer=answer)
            continue
        known = [each for each in around.history.activated if each in around.history.ids]
        if does < 0.4 and known:
            email = rng.choice(known)
            path = f"/api/v1/accounts/{around.history.ids[email][0]}/recover"
            answer = await _ask(around, host, path, None, 202)
            around.history.recoveries.setdefault(email, []).append(answer)
            around.world.tell("recovery.answered", email=email, answer=answer)
            continue
        marker = around.marker("out")
        domain = rng.choice(("one.example", "two.example", "three.example"))
        to = [f"{marker.lower()}-{n}@{domain}" for n in range(rng.choice((1, 1, 1, 5)))]
        for recipient in to:
            around.history.sends[f"{marker}/{recipient}"] = Answer.DOUBT
        body = {
            "from": f"shop@{DOMAIN}",
            "to": to,
            "subject": marker,
            "text": "It is on its way.",
            "priority": rng.choice(("high", "normal", "bulk")),
        }
        answer = await _ask(around, host, "/api/v1/messages/send", body, 202, marker)
        for recipient in to:
            around.history.sends[f"{marker}/{recipient}"] = answer
        around.world.tell("send.answered", marker=marker, answer=answer)


async def _ask(
    around: Around, host: str, path: str, body: Any, good: int, marker: str = ""
) -> Answer:
    try:
        status, made = await call(around, host, "POST", path, body)
    except HttpFailed:
        return Answer.DOUBT
    if status == good:
        if marker and isinstance(made, dict):
            ids = [one["id"] for one in (made, *made.get("messages", ())) if "id" in one]
            around.history.ids.setdefault(marker, []).extend(map(str, ids))
        return Answer.KEPT
    # "Unavailable" may have been said of a commit whose answer was lost.
    return Answer.DOUBT if status >= 500 else Answer.REFUSED


async def submitter(around: Around, name: str, mean: float) -> None:
    """Be a program on a relay's machine that submits mail to it by SMTP."""
    NODE.set(name)
    around.network.show(name, LOOPBACK)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        marker = around.marker("out")
        domain = rng.choice(("one.example", "two.example", "three.example"))
        to = [f"{marker.lower()}-{n}@{domain}" for n in range(rng.choice((1, 1, 3)))]
        sender = around.history.submitters[marker] = f"{marker.lower()}@{SUBMITS_FROM}"
        around.history.sends |= {f"{marker}/{recipient}": Answer.DOUBT for recipient in to}
        answer, said = await _submit(around, around.choose(rng), marker, sender, to)
        around.history.sends |= {f"{marker}/{recipient}": answer for recipient in to}
        around.world.tell("submission.answered", marker=marker, answer=answer, said=said)


async def _submit(
    around: Around, host: str, marker: str, sender: str, to: Sequence[str]
) -> tuple[Answer, str]:
    login = base64.b64encode(f"\0{marker}\0{ADMIN_TOKEN}".encode())
    commands = [b"EHLO program.example", b"AUTH PLAIN " + login]
    commands.append(b"MAIL FROM:<%s>" % sender.encode())
    commands += [b"RCPT TO:<%s>" % recipient.encode() for recipient in to]
    raw = f"From: <{sender}>\r\nSubject: {marker}\r\n\r\nIt is on its way.\r\n".encode()
    dot = False
    try:
        with trio.fail_after(_PATIENCE):
            async with await around.network.open_tcp_stream(host, SUBMISSION) as stream:
                talk = _Talk(stream)
                if (code := await talk.reply()) != 220:
                    return Answer.REFUSED, f"greeting {code}"
                for command in (*commands, b"DATA"):
                    await talk.say(command + b"\r\n")
                    if (code := await talk.reply()) >= 400:
                        return Answer.REFUSED, f"{command[:4].decode()} {code}"
                await talk.say(raw)
                dot = True
                await talk.say(b".\r\n")
                code = await talk.reply()
                if code == 250:
                    ids = talk.last.split()[-1].split(",")
                    around.history.ids.setdefault(marker, []).extend(ids)
                    return Answer.KEPT, "dot 250"
                # Behind the dot 451 is said of what nobody knows, and of nothing else.
                return (Answer.DOUBT if code == 451 else Answer.REFUSED), f"dot {code}"
    except (*_BROKEN, ValueError) as error:
        return (Answer.DOUBT if dot else Answer.REFUSED), type(error).__name__


async def person(around: Around, name: str, mean: float) -> None:
    """Open the links of letters that came, now and then one twice."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        if not around.links:
            continue
        email, token = around.links.pop(rng.randrange(len(around.links)))
        for _ in range(rng.choice((1, 1, 2))):
            host = around.choose(rng)
            try:
                status, _ = await call(
                    around, host, "POST", "/api/v1/tokens/consume", {"token": token}
                )
            except HttpFailed:
                status = 0
            around.world.tell("token.answered", email=email, status=status)
            if status == 200:
                around.history.activated.append(email)
                around.history.consumed[token] += 1
            elif status not in {0, 503} and not around.history.consumed[token]:
                break  # it has expired, or what became of it before was not heard
            elif status != 400:
                around.links.append((email, token))
                break


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
        self._talk = _Talk(stream)
        self._rng = around.world.rng(host)
        self._host = host
        self._key = ""  # of the certificate that was shown
        self._attacked = ""
        self._peer = peer
        self._path = ""
        self._recipient = ""
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
            refusal = Refusal(self._recipient, around.world.now(), self._peer)
            around.history.refusals.append(refusal)
            around.busy(self._peer)
            return rng.choice(_REFUSALS) + b"\r\n"
        if how == "close":
            return b"421 4.3.2 closing\r\n"
        if how == "slow":
            await trio.sleep(rng.uniform(0.1, 20.0))
            return None
        if how == "stall":
            await trio.sleep(rng.uniform(60.0, 400.0))
        raise trio.BrokenResourceError("hung up")

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
        self._talk, self._key = _Talk(tls), key

    async def run(self) -> None:
        """Serve it until it ends."""
        async with self._stream:
            with contextlib.suppress(*_BROKEN):
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
            self._path = line[11 : line.index(b">")].decode()
            await talk.say(b"250 ok\r\n")
        elif verb == b"RCPT":
            self._recipient = line[9:-1].decode()
            self._around.speaks_of(self._recipient, self._peer)
            answer = await self._misbehave("rcpt") or b"250 ok\r\n"
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
        )  # fmt: skip
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
                    around.took(copy, self._path, lines)
                around.world.tell(
                    "message.delivered", marker=marker, recipient=recipient, key=self._key
                )
                around.busy(self._peer)
                if link := _TOKEN.search(raw):
                    around.links.append((recipient, link.group(1).decode()))
        await self._talk.say(refusal or b"250 ok\r\n")
        copy.told = True


async def hooks(
    around: Around, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    """Be the program that is told of mail that arrived."""
    NODE.set("hooks")
    (listener,) = around.network.listen(HOOKS, 80)
    async with trio.open_nursery() as nursery:
        task_status.started()
        while True:
            await trio.lowlevel.wait_readable(listener)
            sock, peer = around.network.accept(listener)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            nursery.start_soon(_be_told, around, stream, peer[0])


_NOT_TOLD = (b"503 Later", b"500 Oops", b"429 Too often", b"404 Not here", b"302 Elsewhere")


async def _be_told(around: Around, stream: trio.SocketStream, peer: str) -> None:
    rng = around.world.rng("hooks")
    async with stream:
        talk = _Talk(stream)
        try:
            length = 0
            while line := await talk.line():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            told = json.loads(await talk.exactly(length))
            status = b"200 OK"
            if around.peers_fail and rng.random() < 0.5:
                how = rng.choice(("refuse", "hang up", "stall", "slow"))
                around.world.tell("hook.misbehaves", how=how)
                if how == "hang up":
                    return
                if how == "stall":
                    await trio.sleep(rng.uniform(10.0, 60.0))
                if how == "slow":  # and says yes, to whom it may be too late
                    await trio.sleep(rng.uniform(0.1, 20.0))
                else:
                    status = rng.choice(_NOT_TOLD)
            await talk.say(b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % status)
            if status[:1] == b"2":
                marker = told["data"]["subject"]
                around.history.told.append(marker)
                around.world.tell("hook.told", marker=marker)
                around.busy(peer)
        except (*_BROKEN, ValueError):
            return


# ------------------------------------------------------------------------------- when all is well


async def probe(around: Around, is_open: Callable[[str], bool]) -> None:
    """When nothing is wrong any more: ask each node for everything a few times, and put down what
    it refuses or takes long for.  A sweep would find the same, but rarely that soon.  `is_open`:
    whether a mailbox is marked as one that takes mail."""
    NODE.set("probe")
    rng = around.world.rng("probe")
    history = around.history
    short: list[Mailbox] = []
    for host in list(around.hosts) * PROBES:
        email = f"{around.marker('acc').lower()}@people.example"
        answer = await _ask(around, host, "/api/v1/accounts", {"email": email, "login": email}, 201)
        history.accounts[email] = answer
        await _soon(around, email, answer, lambda: {copy.recipient for copy in history.copies})

        marker = around.marker("out")
        # To a domain whose mail must be secured, where that is asked for.
        to = "probe@two.example" if goes_direct(around.world) else "probe@one.example"
        body = {"from": f"shop@{DOMAIN}", "to": [to], "subject": marker}
        answer = await _ask(around, host, "/api/v1/messages/send", body | {"text": "Soon."}, 202)
        history.sends[f"{marker}/{to}"] = answer
        await _soon(around, marker, answer, lambda: {copy.marker for copy in history.copies})

        hook = f"http://{HOOKS}/arrived"
        status, made = await call(
            around, host, "POST", "/api/v1/mailboxes", {"ttl_minutes": 10_000, "webhook_url": hook}
        )
        if status != 201:
            history.late.append(f"{host}: nothing is wrong, and a mailbox is refused with {status}")
            continue
        history.mailboxes.append(Mailbox(made["address"], _virtual(made["expires_at"]), tells=True))
        marker = around.marker("in")
        raw = f"To: <{made['address']}>\r\nSubject: {marker}\r\n\r\nSoon.\r\n".encode()
        mail = history.mail[marker] = Mail(marker, made["address"], raw)
        mail.answer, _ = await hand_in(around, rng, mail)
        await _soon(around, marker, mail.answer, lambda: set(history.told))

        status, made = await call(around, host, "POST", "/api/v1/mailboxes", {"ttl_minutes": 0.5})
        if status == 201:
            short.append(Mailbox(made["address"], _virtual(made["expires_at"])))
    for mailbox in short:
        await trio.sleep(max(0.0, mailbox.expires_at + SOON - around.world.now()))
        if is_open(mailbox.address):
            history.late.append(f"{mailbox.address}: nothing is wrong, and it is closed late")


async def _soon(around: Around, what: str, answer: Answer, seen: Callable[[], set[str]]) -> None:
    """Wait until something is seen, and put down if it was refused or is late."""
    began = around.world.now()
    if answer is not Answer.KEPT:
        around.history.late.append(f"{what}: nothing is wrong, and the answer is {answer}")
        return
    with trio.move_on_after(SOON):
        while what not in seen():  # noqa: ASYNC110 - virtual time, of many sources
            await trio.sleep(0.05)
    took = around.world.now() - began
    around.world.tell("probe.took", what=what, seconds=round(took, 2))
    if what not in seen():
        around.history.late.append(f"{what}: nothing is wrong, and it takes over {SOON:g} s")


# ------------------------------------------------------------------------------------------ devices


async def pusher(around: Around, name: str, mean: float, devices: Sequence[Any]) -> None:
    """Leave blobs for devices, in sessions of a few pushes, or over HTTP."""
    from relay.devices import wire
    from relay.devices.noise import NK, Handshake

    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        host = around.choose(rng)
        blobs = []
        for _ in range(rng.choice((1, 3))):
            blob = Blob(around.marker("blob"), rng.randrange(len(devices)), at=around.world.now())
            around.history.blobs[blob.marker] = blob
            blobs.append(blob)
        if rng.random() < 0.3:
            for blob in blobs:
                path = f"/api/v1/devices/{devices[blob.device].public.hex()}/blobs"
                try:
                    status, _ = await call(around, host, "POST", path, blob.marker.encode())
                except HttpFailed:
                    continue
                if status == 201:
                    blob.answer = Answer.KEPT
                elif status < 500:
                    blob.answer = Answer.REFUSED
        else:
            try:
                with trio.fail_after(_PATIENCE):
                    stream = await around.network.open_tcp_stream(host, PUSH)
                    async with stream:
                        session = _Noise(stream)
                        relay_key = around_key(around)
                        await session.shake(Handshake(NK, initiator=True, remote_static=relay_key))
                        for blob in blobs:
                            to = devices[blob.device].public
                            await session.send(wire.push(to, blob.marker.encode()))
                        for blob in blobs:
                            kind, _ = await session.frame()
                            if kind == wire.ACK:
                                blob.answer = Answer.KEPT
                            elif kind == wire.ERROR:
                                blob.answer = Answer.DOUBT
            except _BROKEN:
                pass
        for blob in blobs:
            around.world.tell("blob.answered", marker=blob.marker, answer=blob.answer)


async def device(around: Around, name: str, key: Any, mean: float) -> None:
    """Be a device: come now and then, take what there is, acknowledge most of it."""
    from relay.devices.noise import XX, Handshake

    NODE.set(name)
    rng = around.world.rng(name)
    while True:
        with trio.move_on_at(after(around.world.now(), rng.expovariate(1 / mean))):
            await around.stopped.wait()
        if around.stopped.is_set():  # what is left for it is fetched soon, whatever the hour
            await trio.sleep(rng.expovariate(1 / mean))
        said: dict[str, float] = {}
        try:
            stream = await around.network.open_tcp_stream(around.choose(rng), RECEIVE)
            async with stream:
                session = _Noise(stream)
                with trio.fail_after(_PATIENCE):
                    await session.shake(Handshake(XX, initiator=True, static=key))
                with trio.move_on_after(rng.uniform(1.0, 120.0)):
                    await _take_blobs(around, rng, session, said)
        except _BROKEN:
            pass
        # What it said in its last moment may not have arrived.
        for marker, at in said.items():
            if at < around.world.now() - 0.1:
                around.history.acknowledged.setdefault(marker, at)


async def _take_blobs(around: Around, rng: Any, session: _Noise, said: dict[str, float]) -> None:
    """Take blobs until the device is gone; `said`: what it has acknowledged, and when."""
    from relay.devices import wire

    while True:
        kind, body = await session.frame()
        if kind != wire.DELIVER:
            continue
        marker = body[8:].decode()
        around.history.received.setdefault(marker, []).append(around.world.now())
        around.world.tell("blob.delivered", marker=marker)
        if rng.random() < 0.3:  # it is slow to store it
            await trio.sleep(rng.uniform(0.0, 20.0))
        await session.send(wire.deliver_ack(wire.number(body)))
        said[marker] = around.world.now()
        if rng.random() < 0.2:  # and may be gone before it reads the next
            return


def around_key(around: Around) -> bytes:
    """Return the public key of the relay's device ports."""
    import hashlib

    from relay.devices.noise import KeyPair

    secret = hashlib.sha256(f"{around.world.seed}".encode()).digest()
    return KeyPair.from_private(secret).public


class _Noise:
    """A Noise session as its initiator."""

    def __init__(self, stream: trio.SocketStream) -> None:
        from relay.devices.wire import Splitter

        self._stream = stream
        self._splitter = Splitter()
        self._arrived: list[bytes] = []
        self._transport: Any = None

    async def _message(self) -> bytes:
        while not self._arrived:
            data = await self._stream.receive_some(65536)
            if not data:
                raise trio.BrokenResourceError("closed")
            self._arrived = self._splitter.feed(data)
        return self._arrived.pop(0)

    async def shake(self, handshake: Any) -> None:
        """Shake hands."""
        from relay.devices.wire import prefixed

        await self._stream.send_all(prefixed(handshake.write()))
        handshake.read(await self._message())
        if not handshake.finished:
            await self._stream.send_all(prefixed(handshake.write()))
        self._transport = handshake.transport()

    async def send(self, frame: bytes) -> None:
        """Send a frame."""
        from relay.devices.wire import prefixed

        await self._stream.send_all(prefixed(self._transport.encrypt(frame)))

    async def frame(self) -> tuple[int, bytes]:
        """Return the next frame that is no Heartbeat; those are answered."""
        from relay.devices import wire

        while True:
            kind, body = wire.decode(self._transport.decrypt(await self._message()))
            if kind != wire.HEARTBEAT:
                return kind, body
            await self.send(wire.HEARTBEAT_FRAME)
