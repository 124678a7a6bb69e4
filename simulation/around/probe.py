"""Asks every node for everything, when all is well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import trio

from simulation.around import Around
from simulation.around.devices import Device, post
from simulation.around.hooks import verify
from simulation.around.readers import delete_message, follow, read_list, wait
from simulation.around.senders import hand_in, text
from simulation.around.talk import HttpFailed, ask, call, instant, virtual
from simulation.history import TEXT, Answer, Blob, Look, Mail, Mailbox, Wish
from simulation.kind import QUOTA
from simulation.places import ADMIN_TOKEN, DOMAIN, HOOKS
from simulation.world import NODE

SOON = 1.0
"""Virtual seconds in which what was accepted is delivered, when nothing is wrong."""
_LATER = 2.0  # virtual seconds for which some of the mail is to wait
PROBES = 3
"""How often each node is asked for that."""
_LONG = 50.0  # seconds for which somebody waits at most
_BEGUN = 0.2  # seconds after which they do
_READ_BEFORE = 0.0008, 0.0045
"""Seconds before the end of a mailbox in which its mail is read: the call may find the mailbox
before it, and the message after it."""


async def probe(around: Around, is_open: Callable[[str], bool]) -> None:
    """When nothing is wrong any more: ask each node for everything a few times, and put down what
    it refuses or takes long for.  A sweep would find the same, but rarely that soon.  `is_open`:
    whether a mailbox is marked as one that takes mail."""
    NODE.set("probe")
    async with trio.open_nursery() as nursery:
        # A device that is at every node: each gives it what is left for it at any.
        number = len(around.device_keys) - 1
        for host in around.hosts:
            nursery.start_soon(Device(around, number, around.device_keys[-1]).come, host, None)
        await trio.sleep(SOON)
        there = {each.node for each in around.history.visits if each.device == number}
        around.history.late += [
            f"{host}: nothing is wrong, and a device is kept out"
            for host in around.hosts
            if host not in there
        ]
        await _ask(around, is_open)
        await trio.sleep(3 * SOON)  # until what came is acknowledged
        nursery.cancel_scope.cancel()


async def _ask(around: Around, is_open: Callable[[str], bool]) -> None:
    rng = around.world.rng("probe")
    history = around.history
    async with trio.open_nursery() as ends:
        for number, host in enumerate(list(around.hosts) * PROBES):
            other = around.hosts[(number + 1) % len(around.hosts)]
            email = f"{around.marker('acc').lower()}@people.example"
            answer = await ask(
                around, host, "/api/v1/accounts", {"email": email, "login": email}, 201
            )
            history.accounts[email] = answer
            await _soon(around, email, answer, lambda: {copy.recipient for copy in history.copies})

            marker = around.marker("out")
            # To a domain whose mail must be secured, where that is asked for.
            to = "probe@two.example" if around.world.kind.direct else "probe@one.example"
            body = {"from": f"shop@{DOMAIN}", "to": [to], "subject": marker, "text": TEXT}
            wish = history.wishes[marker] = Wish(around.world.now())
            if number < len(around.hosts):
                wish.send_at = round(around.world.now() + _LATER, 3)
                body["send_at"] = instant(wish.send_at)
            answer = await ask(around, host, "/api/v1/messages/send", body, 202)
            history.sends[f"{marker}/{to}"] = answer
            await trio.sleep(max(0.0, wish.send_at + history.apart - around.world.now()))
            await _soon(around, marker, answer, lambda: {copy.marker for copy in history.copies})

            blob = Blob(around.marker("blob"), len(around.device_keys) - 1)
            blob.envelope = blob.marker.encode() + b"\0"
            history.blobs[blob.marker] = blob
            await post(around, host, blob, around.device_keys[-1])
            await _soon(around, blob.marker, blob.answer, lambda: _at_all(around))

            mailbox = await _made(around, host, 10_000, tells=True)
            if mailbox is not None:
                await _arrives(around, rng, mailbox, host, other)
                await _look_at_signatures(around, host, mailbox.address)
            mailbox = await _made(around, host, 0.5)
            if mailbox is not None:
                ends.start_soon(_ends, around, rng, mailbox, host, other, is_open)
        if around.world.kind.quota:
            await _fills(around, rng, *around.hosts[:2])


async def _made(
    around: Around, host: str, minutes: float, *, tells: bool = False, limited: bool = False
) -> Mailbox | None:
    """Make a mailbox; None, and that is put down: it was refused."""
    wanted: dict[str, Any] = {"ttl_minutes": minutes}
    if tells:
        wanted["webhook_url"] = f"http://{HOOKS}/arrived"
    token = "" if limited else ADMIN_TOKEN
    status, made = await call(around, host, "POST", "/api/v1/mailboxes", wanted, token=token)
    if status != 201:
        around.history.late.append(
            f"{host}: nothing is wrong, and a mailbox is refused with {status}"
        )
        return None
    quota = QUOTA if limited else None
    mailbox = Mailbox(made["address"], virtual(made["expires_at"]), tells, quota)
    around.history.mailboxes.append(mailbox)
    return mailbox


async def _mail(around: Around, rng: Any, mailbox: Mailbox, host: str, size: int = 10) -> Mail:
    """Hand in a message."""
    marker = around.marker("in")
    raw = text("probe@sender.example", mailbox.address, marker, size)
    mail = Mail(marker, mailbox.address, raw, around.world.now())
    around.history.mail[f"{marker}/{mailbox.address}"] = mail
    await hand_in(around, rng, mail, host, lingers=0.0)
    return mail


async def _arrives(around: Around, rng: Any, mailbox: Mailbox, host: str, other: str) -> None:
    """Mail is told of and shown to who waits for it, elsewhere too; deleted, it is not shown."""
    history = around.history
    shown: list[str] = []
    waited: list[Look] = []

    async def waiting() -> None:
        waited.append(await wait(around, other, mailbox.address, _LONG))

    async with trio.open_nursery() as waits:
        await waits.start(follow, around, other, mailbox.address, shown)
        waits.start_soon(waiting)
        await trio.sleep(_BEGUN)
        mail = await _mail(around, rng, mailbox, host)
        what = f"{mail.marker}/{mailbox.address}"
        await _soon(around, what, mail.answer, lambda: set(history.told))
        await _soon(around, f"a wait for {mail.marker}", mail.answer, lambda: {
            f"a wait for {marker}" for look in waited for marker in look.shown
        })  # fmt: skip
        await _soon(around, f"a stream with {mail.marker}", mail.answer, lambda: {
            f"a stream with {marker}" for marker in shown
        })  # fmt: skip
        waits.cancel_scope.cancel()
    if mail.id:
        await delete_message(around, host, mailbox.address, mail.id, mail.marker)
        await read_list(around, rng, mailbox.address, other)
        await read_list(around, rng, mailbox.address, host)


async def _ends(
    around: Around,
    rng: Any,
    mailbox: Mailbox,
    host: str,
    other: str,
    is_open: Callable[[str], bool],
) -> None:
    """A mailbox ends: whoever waits hears of it, it is closed, and nothing is read of it then."""
    mail = await _mail(around, rng, mailbox, host)
    ended: set[str] = set()
    what = f"{mailbox.address}: nothing is wrong, and"

    async def waiting() -> None:
        look = await wait(around, other, mailbox.address, _LONG, after=mail.id)
        if look.status == 404:
            ended.add("a wait")

    async def following() -> None:
        await follow(around, other, mailbox.address, [])
        ended.add("a stream")

    async def reading() -> None:
        await trio.sleep_until(mailbox.expires_at - rng.uniform(*_READ_BEFORE))
        with suppress(HttpFailed):
            path = f"/api/v1/mailboxes/{mailbox.address}/messages/{mail.id}"
            await call(around, rng.choice((host, other)), "GET", path)

    async with trio.open_nursery() as waits:
        waits.start_soon(waiting)
        waits.start_soon(following)
        waits.start_soon(reading)
        await trio.sleep_until(mailbox.expires_at + around.history.apart + SOON)
        for each in ("a wait", "a stream"):
            if each not in ended:
                around.history.late.append(f"{what} {each} outlasts it")
        if is_open(mailbox.address):
            around.history.late.append(f"{what} it is closed late")
        waits.cancel_scope.cancel()


async def _fills(around: Around, rng: Any, host: str, other: str = "") -> None:
    """A mailbox takes what its quota allows, and again when something of it was deleted."""
    most, most_bytes = QUOTA
    for size in (10, most_bytes * 3 // 5):
        mailbox = await _made(around, host, 30, limited=True)
        if mailbox is None:
            continue
        fits = most if size == 10 else 1
        first = await _mail(around, rng, mailbox, host, size)
        for _ in range(fits):
            await _mail(around, rng, mailbox, other or host, size)
        if first.id:
            await delete_message(around, host, mailbox.address, first.id, first.marker)
        await _mail(around, rng, mailbox, other or host, size)
        await _mail(around, rng, mailbox, host, size)


async def _look_at_signatures(around: Around, host: str, address: str) -> None:
    """All mailboxes are the administrator's, and so is the secret that any node shows of them."""
    status, shown = await call(around, host, "GET", f"/api/v1/mailboxes/{address}/webhook")
    if status != 200:
        around.history.late.append(f"{address}: nothing is wrong, and its secret is not shown")
        return
    verify(around.history.posts, shown["secret"])


def _at_all(around: Around) -> set[str]:
    """Return the blobs that have come from every node."""
    return {
        marker
        for marker, seen in around.history.received.items()
        if {each.visit.node for each in seen} >= set(around.hosts)
    }


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
