"""Mail that is signed, and what comes back of it: worlds in which `kind.returns`.

Whoever administers the relay makes keys for its domain and rotates them (`administrator`).  Servers
look at the signatures of what they take (`selectors`), and of some of it they report afterwards
(`reporter`): that there is no such address after all, that it was refused for policy, that it is
late, that its recipient complains.  Some reports are forged: their return path is nobody's.  As
servers do, they hand a report in again until it is taken, or refused for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from simulation.around import Around
from simulation.around.senders import hand_in
from simulation.around.talk import HttpFailed, call
from simulation.history import Answer, Copy, Mail, Report, Reported
from simulation.keys import private_key
from simulation.places import DOMAIN, RETURNS
from simulation.world import NODE

_OF_ALL = 0.25  # of what is taken, the share of which something comes back
_SOON = 15.0  # seconds
_AGAIN = 30.0  # seconds until a report that was not taken is handed in again
_DOUBT = 200.0  # seconds after which a call that nobody answered has done what it does


def selectors(lines: Sequence[bytes]) -> tuple[str, ...] | None:
    """Return the selectors of a mail's signatures, in their order; None: it needs none, for its
    author is at another domain.  Of one that does not verify, what is wrong."""
    from relay.checks.dkim import verify
    from relay.checks.fields import split
    from relay.checks.signatures import prepare
    from relay.dns.questions import found as answer
    from relay.outbound.signing.dkim import ALGORITHMS, record

    fields, body = split(b"\r\n".join(line.removeprefix(b".") for line in lines) + b"\r\n")
    author = next(field.value for field in fields if field.name == b"from")
    if not author.strip().rstrip(b">").endswith(f"@{DOMAIN}".encode()):
        return None
    published = answer(*(record(private_key(name)) for name in ALGORITHMS))
    found = []
    for prepared in prepare(fields, body):
        asking = verify(prepared, 0.0)
        next(asking)
        try:
            asking.send(published)
        except StopIteration as ended:
            said = ended.value
            found.append(said.selector if said.result == "pass" else said.detail)
    return tuple(found)


async def administrator(around: Around, name: str, mean: float) -> None:
    """Make keys for the relay's domain soon, and rotate them."""
    NODE.set(name)
    rng, keys = around.world.rng(name), around.history.keys
    path = f"/api/v1/dkim/{DOMAIN}"
    while await around.pause(rng, mean if keys else _SOON):
        host = around.choose(rng)
        try:
            known, _ = await call(around, host, "GET", path)
            if known not in {200, 404}:
                continue
        except HttpFailed:
            continue
        try:
            if known == 404:
                status, _ = await call(around, host, "POST", "/api/v1/dkim", {"domain": DOMAIN})
            else:
                status, _ = await call(around, host, "POST", f"{path}/rotate")
            shown: Any = None
            if status < 300:
                _, shown = await call(around, host, "GET", path)
            signing = [key["selector"] for key in shown["keys"] if key["state"] == "active"]
        except (HttpFailed, TypeError, KeyError):  # no answer, or an error
            keys.append((around.world.now(), None))
            await trio.sleep(_DOUBT)
        else:
            keys.append((around.world.now(), tuple(signing)))
        around.world.tell("keys.answered", selectors=keys[-1][1])


def take(around: Around, copy: Copy, path: str, lines: Sequence[bytes]) -> None:
    """Look at the signatures of what a server took, and decide whether something comes back of it:
    only of what has a name of its own, sent to who gets nothing else."""
    copy.selectors = selectors(lines)
    rng = around.world.rng("returns")
    of_its_own = copy.marker.startswith("M-out") and copy.marker.lower() in copy.recipient
    if of_its_own and path.endswith(f"@{RETURNS}") and rng.random() < _OF_ALL:
        what = rng.choice(list(Reported))
        around.coming_back.append((path, Report(copy.marker, copy.recipient, what)))


async def reporter(around: Around, name: str, mean: float) -> None:
    """Hand in what comes back, one report after the other."""
    NODE.set(name)
    rng = around.world.rng(name)
    while True:
        if not await around.pause(rng, mean):
            await trio.sleep(1.0)
        while around.coming_back:
            path, report = around.coming_back[0]
            await _hand_back(around, rng, path, report)
            around.history.reports.append(report)
            around.coming_back.pop(0)


async def _hand_back(around: Around, rng: Any, path: str, report: Report) -> None:
    marker = around.marker("back")
    to = path
    if report.what is Reported.FORGED:
        last = "b" if path.partition("@")[0][-1] == "a" else "a"
        local = path.partition("@")[0]
        to = f"{local[:-1]}{last}@{RETURNS}"
    elif report.what is Reported.COMPLAINT:
        to = f"fbl@{RETURNS}"
    mail = Mail(marker, to, _text(marker, path, report).encode())
    while True:
        report.answer, said = await hand_in(around, rng, mail, sender="")
        around.world.tell(
            "report.answered", marker=report.marker, what=report.what, answer=report.answer,
            said=said,
        )  # fmt: skip
        if report.answer is Answer.KEPT or said.endswith((" 550", " 554")):
            return
        await trio.sleep(_AGAIN)


_SAID = {
    Reported.GONE: ("failed", "5.1.1", "550 5.1.1 no such user"),
    Reported.FORGED: ("failed", "5.1.1", "550 5.1.1 no such user"),
    Reported.POLICY: ("failed", "5.7.1", "550 5.7.1 not from you"),
    Reported.DELAYED: ("delayed", "4.4.1", "421 4.4.1 nobody answers"),
}


def _text(marker: str, path: str, report: Report) -> str:
    if report.what is Reported.COMPLAINT:
        kind, part = "feedback-report", "message/feedback-report"
        said = (
            f"Feedback-Type: abuse\r\nUser-Agent: simulation/1\r\nVersion: 1\r\n"
            f"Original-Mail-From: <{path}>\r\nOriginal-Rcpt-To: <{report.recipient}>\r\n"
        )
    else:
        kind, part = "delivery-status", "message/delivery-status"
        action, status, reply = _SAID[report.what]
        said = (
            f"Reporting-MTA: dns; mx.example\r\n\r\nFinal-Recipient: rfc822; {report.recipient}\r\n"
            f"Action: {action}\r\nStatus: {status}\r\nDiagnostic-Code: smtp; {reply}\r\n"
        )
    return (
        f"From: <mailer-daemon@mx.example>\r\nTo: <{path}>\r\nSubject: {marker}\r\n"
        "MIME-Version: 1.0\r\n"
        f'Content-Type: multipart/report; report-type={kind}; boundary="b"\r\n\r\n'
        "--b\r\nContent-Type: text/plain\r\n\r\nThis is what became of it.\r\n"
        f"--b\r\nContent-Type: {part}\r\n\r\n{said}\r\n"
        f"--b\r\nContent-Type: text/rfc822-headers\r\n\r\nSubject: {marker}\r\n\r\n--b--\r\n"
    )
