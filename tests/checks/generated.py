"""Mail of every kind, signed and then perhaps altered, with the DNS that belongs to it: by a seed.

What is drawn is what verifiers are known to differ in: white space and folding, empty lines, empty
bodies, lengths, several signatures, fields that are there twice or not at all, keys of every kind.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from relay.dns.questions import FAILED, Answer
from tests.checks.signing import Form, ed25519_key, record, rsa_key, sign

PAST, FUTURE = 1_000_000_000, 4_000_000_000


@dataclass
class Case:
    """A message and what came with it.

    By selector: `odd`, the rule that a signature breaks although it verifies, `keys`, the kind of
    its key, and `lengths`, its l=.
    """

    raw: bytes
    zone: dict[tuple[str, str], Answer | str | list[str]] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    client: str = "192.0.2.1"
    helo: str = "mail.example.com"
    mail_from: str = "ann@example.com"
    keys: dict[str, str] = field(default_factory=dict)
    lengths: dict[str, int | None] = field(default_factory=dict)
    said: str = ""
    """What was done, for whoever looks into a difference."""


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = random.Random(seed)
    for _ in range(count):
        yield _case(rng)


_WORDS = (
    b"alpha",
    b"Beta",
    b"gamma.",
    b"=?utf-8?q?d=C3=A9?=",
    b"caf\xc3\xa9",
    b"b\xe9",
    b"<x>",
    b";",
)
_SPACES = (b" ", b"  ", b"\t", b" \t ", b"\r\n ", b"\r\n\t", b" \r\n  ")
_BODY_SPACES = (b" ", b"  ", b"\t", b" \r\n", b"\r\n", b"\r\n\r\n", b"\t\t\r\n", b"\r\n \r\n")
_DOMAINS = ("example.com", "mail.example.com", "example.net", "a.b.example.co.uk", "EXAMPLE.com")


def _text(rng: random.Random, spaces: tuple[bytes, ...], words: int) -> bytes:
    parts = []
    for _ in range(rng.randrange(words)):
        parts += [rng.choice(_WORDS), rng.choice(spaces)]
    return b"".join(parts)


def _head(rng: random.Random, author: bytes) -> list[bytes]:
    gap = rng.choice((b"", b" ", b"  ", b"\r\n ", b"\t"))
    fields = [
        b"From:" + gap + author,
        b"To: bob@example.net,\r\n\tcarol@example.net" + rng.choice((b"", b" ", b"\t")),
        b"Subject:" + _text(rng, _SPACES, 8).rstrip(b"\r\n \t"),
        b"Date: Fri, 11 Jul 2003 21:00:37 -0700 (PDT)",
    ]
    if rng.random() < 0.3:
        fields.append(b"subject: another " + _text(rng, _SPACES[:4], 3))
    if rng.random() < 0.3:
        fields += [b"X-Empty:", b"X-Blank: "]
    if rng.random() < 0.3:
        fields += [b"Received: from a by b;\r\n Fri", b"Received: from c by d;\r\n\tSat"]
    rng.shuffle(fields)
    return fields


def _body(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice((b"", b"\r\n", b"\r\n\r\n", b" \r\n", b"\t\r\n\r\n", b"x"))
    return _text(rng, _BODY_SPACES, 30) + rng.choice((b"", b"\r\n", b"\r\n\r\n\r\n", b" \r\n"))


def _case(rng: random.Random) -> Case:
    author = rng.choice(_DOMAINS)
    shown = rng.choice(
        ("ann@{}", "Ann <ann@{}>", '"Lee, Ann" <ann@{}>', "=?utf-8?q?=C3=A4?= <a@{}>")
    )
    raw = b"\r\n".join(_head(rng, shown.format(author).encode())) + b"\r\n\r\n" + _body(rng)
    case = Case(raw)
    said = [f"From {author}"]
    for number in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
        said.append(_signed(rng, case, f"s{number}"))
    if rng.random() < 0.5:
        said.append(_altered(rng, case))
    _policies(rng, case)
    case.said = "; ".join(said)
    return case


def _signed(rng: random.Random, case: Case, selector: str) -> str:
    domain = rng.choice(_DOMAINS)
    key: RSAPrivateKey | Ed25519PrivateKey
    key = rng.choice((rsa_key(1024), rsa_key(2048), ed25519_key()))
    header: Form = rng.choice(("simple", "relaxed"))
    body: Form = rng.choice(("simple", "relaxed"))
    names = rng.sample(["to", "Subject", "date", "x-empty", "x-blank", "received", "none"], 4)
    names.insert(rng.randrange(4), rng.choice(("from", "From", "FROM")))
    if rng.random() < 0.3:
        names += ["from", "subject"]
    length = rng.choice((None, None, None, 0, 1, 5))
    odd = tags = more = ""
    sha1 = False
    draw = rng.random()
    if draw < 0.05:
        tags = f"x={FUTURE}; t={PAST}; "
    elif draw < 0.1:
        tags = "i=ann@sub." + domain + "; q=dns/txt; "
    elif draw < 0.2:
        odd = rng.choice(("expired", "i", "from", "l", "q", "sha1", "s", "h", "t=s", "twice"))
        said = _ODD[odd]
        tags, more = said.format(domain=domain, past=PAST) if said[-2:] == "; " else "", ""
        if odd == "from":
            names = [name for name in names if name.lower() != "from"] or ["to"]
        elif odd == "l":
            length = 1_000_000
        elif odd == "sha1":
            key, sha1 = rsa_key(1024), True
        elif odd in {"s", "h"}:
            tags, more = "", {"s": "s=tlsrpt; ", "h": "h=sha1; "}[odd]
        elif odd == "t=s":
            tags, more = f"i=@sub.{domain}; ", "t=s; "
    fold = rng.choice(("\r\n\t", " ", "\r\n  ", " \r\n "))
    case.raw = sign(
        *(case.raw, key),
        domain=domain,
        selector=selector,
        header=header,
        body=body,
        names=names,
        length=length,
        tags=tags,
        fold=fold,
        sha1=sha1,
    )
    case.keys[selector] = "ed25519" if isinstance(key, Ed25519PrivateKey) else "rsa"
    case.lengths[selector] = length
    if odd:
        case.odd[selector] = odd
    where = f"{selector}._domainkey.{domain.lower()}", "TXT"
    draw = rng.random()
    if draw < 0.82:
        case.zone[where] = record(key, more)
    elif draw < 0.85:
        case.zone[where] = "v=DKIM1; k=rsa; p="
    elif draw < 0.88:
        case.zone[where] = record(rsa_key(2048) if key is not rsa_key(2048) else rsa_key(1024))
    elif draw < 0.91:
        case.zone[where] = FAILED
    elif draw < 0.94:
        case.zone[where] = record(key, more).removeprefix("v=DKIM1; ")
    elif draw < 0.96:
        case.zone[where] = "v=DKIM1; p=!"
    return (
        f"{selector} {domain} {type(key).__name__} {header}/{body} {names} l={length} {odd or tags}"
    )


_ODD = {
    "expired": "x={past}; ",
    "i": "i=ann@elsewhere.example; ",
    "q": "q=other; ",
    "twice": "d={domain}; ",
    "from": "",
    "l": "",
    "sha1": "",
    "s": "",
    "h": "",
    "t=s": "",
}


def _altered(rng: random.Random, case: Case) -> str:
    head, _, body = case.raw.partition(b"\r\n\r\n")
    kind = rng.choice(
        (
            "body",
            "space",
            "append",
            "lines",
            "subject",
            "fold",
            "name",
            "order",
            "added",
            "gone",
            "b",
        )
    )
    fields = [b""]
    for line in head.split(b"\r\n"):
        if line[:1] in b" \t" and line:
            fields[-1] += b"\r\n" + line
        else:
            fields.append(line)
    fields.pop(0)
    match kind:
        case "body":
            body = body.replace(b"alpha", b"Alpha", 1)
        case "space":
            body = body.replace(b" ", b"  ", 1).replace(b"\t", b" ", 1)
        case "append":
            body += b"more\r\n"
        case "lines":
            body = body.rstrip(b"\r\n") + rng.choice((b"", b"\r\n", b"\r\n\r\n\r\n"))
        case "subject":
            fields = [one.replace(b"Beta", b"beta") for one in fields]
        case "fold":
            fields = [one.replace(b" bob", b"\r\n  bob") for one in fields]
        case "name":
            fields = [one.replace(b"Date:", b"DATE:").replace(b"To:", b"to:") for one in fields]
        case "order":
            fields.reverse()
        case "added":
            fields.insert(rng.randrange(len(fields) + 1), b"Subject: added")
        case "gone":
            fields = [one for one in fields if not one.startswith(b"To:")]
        case "b":
            fields = [_flipped(rng, one) for one in fields]
    case.raw = b"\r\n".join(fields) + b"\r\n\r\n" + body
    return kind


def _flipped(rng: random.Random, one: bytes) -> bytes:
    """A signature with another character in the middle of what it says."""
    if not one.startswith(b"DKIM-Signature") or rng.random() < 0.5:
        return one
    at = one.rindex(b"b=") + 10
    return one[:at] + (b"A" if one[at : at + 1] != b"A" else b"B") + one[at + 1 :]


def _policies(rng: random.Random, case: Case) -> None:
    case.mail_from = f"ann@{rng.choice(_DOMAINS)}"
    for domain in ("example.com", "mail.example.com", "example.net", "example.co.uk"):
        draw = rng.random()
        if draw < 0.7:
            more = rng.choice(
                ("", "; adkim=s", "; aspf=s", "; adkim=s; aspf=s", "; sp=none; pct=0")
            )
            policy = rng.choice(("none", "quarantine", "reject"))
            case.zone[f"_dmarc.{domain}", "TXT"] = f"v=DMARC1; p={policy}{more}"
        elif draw < 0.75:
            case.zone[f"_dmarc.{domain}", "TXT"] = FAILED
        elif draw < 0.8:
            case.zone[f"_dmarc.{domain}", "TXT"] = ["v=DMARC1; p=none", "v=DMARC1; p=reject"]
    for name in ("example.com", "mail.example.com", "example.net", "a.b.example.co.uk"):
        end = rng.choice(("-all", "~all", "?all", "", "ip4:192.0.2.0/28 -all"))
        if rng.random() < 0.8:
            case.zone[name, "TXT"] = f"v=spf1 {end}".rstrip()
