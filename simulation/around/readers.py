"""Who reads: lists mailboxes page by page, waits for mail, deletes it, deletes mailboxes, and looks
into those that are over.

What they are shown is put down as a `Look`, whatever it is: the judge knows what was there.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import trio

from simulation.around import Around
from simulation.around.talk import BROKEN, HttpFailed, Talk, call, fetch
from simulation.history import Look, Mail, Mailbox
from simulation.places import ADMIN_TOKEN, HTTP
from simulation.world import NODE

_PAGES = 12
"""Of a list, at most."""
_NEXT = re.compile(r"<([^>]+)>; rel=\"next\"")
_OF_ONE = ("", "/raw", "/attachments/0")
_OF_ALL = ("", "/messages", "/messages/wait?timeout=0", "/events", "/webhook")


async def reader(around: Around, name: str, mean: float) -> None:
    """Read mail, and delete some of it."""
    NODE.set(name)
    rng = around.world.rng(name)
    while await around.pause(rng, mean):
        now = around.world.now()
        live = [box for box in around.history.mailboxes if now < around.history.over_from(box)]
        if not live:
            continue
        mailbox = rng.choice(live)
        does = rng.random()
        if does < 0.4:
            await _wait(around, rng, mailbox)
            continue
        entries = await read_list(around, rng, mailbox.address)
        if does < 0.6 and entries:
            await delete_message(around, around.choose(rng), mailbox.address, *rng.choice(entries))
        elif does < 0.7 and mailbox is not around.history.mailboxes[0]:
            await _delete_mailbox(around, rng, mailbox)
        if does < 0.7:
            await read_list(around, rng, mailbox.address)


async def read_list(
    around: Around, rng: Any, address: str, host: str = ""
) -> list[tuple[str, str]]:
    """Read a mailbox to its end, page by page, each from any node; returns ids and markers."""
    look = Look("list", address, around.world.now())
    entries: list[tuple[str, str]] = []
    path = f"/api/v1/mailboxes/{address}/messages?limit={rng.choice((2, 5, 50))}"
    for _ in range(_PAGES):
        try:
            look.status, head, found = await fetch(around, host or around.choose(rng), "GET", path)
        except HttpFailed:
            break
        if look.status != 200:
            break
        entries += [(one["id"], one["subject"] or "") for one in found]
        more = _NEXT.search(head.get("link", ""))
        if more is None:
            look.whole = True
            break
        path = more.group(1)
    look.shown = [marker for _, marker in entries]
    _put_down(around, look)
    for id_, marker in entries:
        if (mail := around.history.mail.get(f"{marker}/{address}")) is not None:
            mail.id, mail.parsed_at = id_, min(mail.parsed_at, look.ended)
    return [entry for entry in entries if entry[1]]


async def _wait(around: Around, rng: Any, mailbox: Mailbox) -> None:
    """Wait for any mail, or for some that is there by now."""
    sought = ""
    kept = [mail for mail in around.history.mail.values() if mail.address == mailbox.address]
    if kept and rng.random() < 0.5:
        sought = rng.choice(kept).marker
    await wait(around, around.choose(rng), mailbox.address, rng.choice((0, 2, 20)), sought)


async def wait(
    around: Around, host: str, address: str, seconds: float, sought: str = "", after: str = ""
) -> Look:
    """Wait for mail with a subject, or for any that is newer than a message, or for any."""
    look = Look("wait", address, around.world.now(), sought=sought)
    query = f"timeout={seconds:g}" + (f"&subject={sought}" if sought else "")
    query += f"&after={after}" if after else ""
    look.judged = not after
    path = f"/api/v1/mailboxes/{address}/messages/wait?{query}"
    try:
        look.status, found = await call(around, host, "GET", path)
    except HttpFailed:
        look.status = 0
    else:
        look.shown = [found["subject"] or ""] if look.status == 200 else []
    _put_down(around, look)
    return look


async def follow(
    around: Around,
    host: str,
    address: str,
    shown: list[str],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Follow a mailbox as a stream of events until it ends; `shown`: the markers that came."""
    head = (
        f"GET /api/v1/mailboxes/{address}/events HTTP/1.1\r\nHost: relay.example\r\n"
        f"Connection: close\r\nAuthorization: Bearer {ADMIN_TOKEN}\r\n\r\n"
    )
    with suppress(*BROKEN, ValueError):
        async with await around.network.open_tcp_stream(host, HTTP) as stream:
            talk = Talk(stream)
            await talk.say(head.encode())
            await talk.head()
            task_status.started()
            while True:
                name, _, value = (await talk.line()).partition(b": ")
                if name == b"data":
                    shown.append(json.loads(value).get("subject") or "")


async def delete_message(around: Around, host: str, address: str, id_: str, marker: str) -> None:
    """Delete a message of a mailbox."""
    mail = around.history.mail.get(f"{marker}/{address}")
    if mail is None:
        return
    first, mail.deletion_asked = _asked(around, mail), min(mail.deletion_asked, around.world.now())
    look = Look("message", address, around.world.now(), sought=marker, judged=first)
    try:
        path = f"/api/v1/mailboxes/{address}/messages/{id_}"
        look.status, _ = await call(around, host, "DELETE", path)
    except HttpFailed:
        look.status = 0
    if look.status == 204:
        mail.deleted_at = min(mail.deleted_at, around.world.now())
    _put_down(around, look)


async def _delete_mailbox(around: Around, rng: Any, mailbox: Mailbox) -> None:
    """Delete a mailbox, at times with all that is in it."""
    first = _asked(around, mailbox)
    mailbox.deletion_asked = min(mailbox.deletion_asked, around.world.now())
    look = Look("mailbox", mailbox.address, around.world.now(), judged=first)
    purge = "?purge=true" if rng.random() < 0.3 else ""
    try:
        path = f"/api/v1/mailboxes/{mailbox.address}{purge}"
        look.status, _ = await call(around, around.choose(rng), "DELETE", path)
    except HttpFailed:
        look.status = 0
    if look.status == 204:
        mailbox.deleted_at = around.world.now()
    _put_down(around, look)


def _asked(around: Around, what: Mail | Mailbox) -> bool:
    """Whether nobody has asked to delete it before."""
    return what.deletion_asked > around.world.now()


async def look_back(around: Around, rng: Any) -> None:
    """Ask for anything of a mailbox that is over."""
    now = around.world.now()
    over = [box for box in around.history.mailboxes if now > around.history.over_at(box)]
    if not over:
        return
    mailbox = rng.choice(over[-20:])
    path = rng.choice(_OF_ALL)
    kept = [
        mail.id
        for mail in around.history.mail.values()
        if mail.address == mailbox.address and mail.id
    ]
    if kept and rng.random() < 0.5:
        path = f"/messages/{rng.choice(kept)}{rng.choice(_OF_ONE)}"
    look = Look("over", mailbox.address, now, sought=path)
    try:
        look.status, _ = await call(
            around, around.choose(rng), "GET", f"/api/v1/mailboxes/{mailbox.address}{path}"
        )
    except HttpFailed:
        return
    _put_down(around, look)


def _put_down(around: Around, look: Look) -> None:
    look.ended = around.world.now()
    around.history.looks.append(look)
    around.world.tell(
        "mailbox.read", of=look.of, address=look.address, status=look.status, shown=len(look.shown)
    )
