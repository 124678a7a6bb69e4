"""Reports of TLS (RFC 8460) as they are written: who gets them, the JSON, and the mail around it.

`receivers` reads the record at `_smtp._tls.`, `report_of` makes the report of a day, `mail_of` the
message that carries it.

Promises
- A report says of the relay no more than its name and from where it connected, if that is a public
  address (behind NAT nobody here knows it), and of others what they publish and where it was
  connected to; nothing of any mail.
- The same results make the same report, byte for byte.

Fails: never; a record that is none has no receivers.

Pure.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from relay.access.owners import REPORTS_ID
from relay.outbound.composing.compose import address_field, date_of
from relay.outbound.composing.message import Address, MalformedMessage, Message, parse_address
from relay.outbound.mx.tls_results import TlsResult
from relay.ssrf_guard import is_public

MOST_RECEIVERS = 4
"""Receivers of one report; a domain may name as many as it likes."""

_RECORD = re.compile(r"v=TLSRPTv1\s*;")
_INSTANT = "%Y-%m-%dT%H:%M:%SZ"
_LINE = 76


class Receivers(NamedTuple):
    """Who gets the reports of a domain."""

    addresses: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()


def receivers(texts: Iterable[str]) -> Receivers:
    """Who gets reports, by the TXT records at `_smtp._tls.`; several records are none (3)."""
    records = [text for text in texts if _RECORD.match(text)]
    if len(records) != 1:
        return Receivers()
    addresses: dict[str, None] = {}
    urls: dict[str, None] = {}
    for field in records[0].split(";")[1:]:
        name, _, value = field.partition("=")
        if name.strip() != "rua":
            continue
        for uri in (one.strip() for one in value.split(",")):
            scheme, _, rest = uri.partition(":")
            if scheme.lower() == "mailto":
                with suppress(MalformedMessage):
                    address = parse_address(unquote(rest.partition("?")[0]), "rua")
                    addresses.setdefault(address.address)
            elif scheme.lower() == "https" and _is_url(uri):
                urls.setdefault(uri)
    return Receivers(tuple(addresses)[:MOST_RECEIVERS], tuple(urls)[:MOST_RECEIVERS])


def _is_url(uri: str) -> bool:
    if not (uri.isascii() and uri.isprintable()) or " " in uri:
        return False
    try:
        return bool(urlsplit(uri).hostname)
    except ValueError:
        return False


class Report(NamedTuple):
    """The report of a domain's day."""

    id: str
    filename: str
    subject: str
    domain: str
    submitter: str
    body: bytes
    """JSON, packed by gzip."""


def report_of(
    domain: str, day: date, results: Sequence[tuple[TlsResult, int]], *, sender: Address, id: str
) -> Report:
    """The report of the results of a domain's day (UTC), from an organisation's address."""
    submitter = sender.address.rpartition("@")[2]
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    end = begin + timedelta(days=1, seconds=-1)
    written = {
        "organization-name": sender.name or submitter,
        "date-range": {
            "start-datetime": begin.strftime(_INSTANT),
            "end-datetime": end.strftime(_INSTANT),
        },
        "contact-info": sender.address,
        "report-id": id,
        "policies": _policies(domain, results),
    }
    text = json.dumps(written, indent=1, ensure_ascii=False).encode()
    stamps = f"{int(begin.timestamp())}!{int(end.timestamp())}"
    return Report(
        id,
        f"{submitter}!{domain}!{stamps}!{id}.json.gz",
        f"Report Domain: {domain} Submitter: {submitter} Report-ID: <{id}@{submitter}>",
        domain,
        submitter,
        gzip.compress(text, mtime=0),
    )


def _policies(domain: str, results: Sequence[tuple[TlsResult, int]]) -> list[dict[str, Any]]:
    """What each policy of a domain came to (4.4)."""
    by_policy: dict[Any, list[tuple[TlsResult, int]]] = {}
    for result, count in sorted(results):
        by_policy.setdefault(result.published, []).append((result, count))
    return [
        {
            "policy": {
                "policy-type": published.type,
                **({"policy-string": list(published.strings)} if published.strings else {}),
                "policy-domain": domain,
                **({"mx-host": list(published.hosts)} if published.hosts else {}),
            },
            "summary": {
                "total-successful-session-count": sum(n for one, n in found if not one.fault),
                "total-failure-session-count": sum(n for one, n in found if one.fault),
            },
            "failure-details": [_details(one, n) for one, n in found if one.fault],
        }
        for published, found in by_policy.items()
    ]


def _details(result: TlsResult, count: int) -> dict[str, Any]:
    return {
        "result-type": result.fault,
        **({"sending-mta-ip": result.source} if _is_public(result.source) else {}),
        **({"receiving-mx-hostname": result.host} if result.host else {}),
        **({"receiving-ip": result.address} if result.address else {}),
        "failed-session-count": count,
    }


def _is_public(address: str) -> bool:
    return bool(address) and is_public(address)


def mail_of(report: Report, to: Sequence[str], *, sender: Address, at: datetime) -> Message:
    """The message that carries a report (5.3)."""
    recipients = [Address(address) for address in to]
    boundary = f"report-{report.id}"
    head = [
        address_field("From", [sender]),
        address_field("To", recipients),
        f"Subject: {report.subject}",
        f"Date: {date_of(at)}",
        f"Message-ID: <{report.id}@{report.submitter}>",
        f"TLS-Report-Domain: {report.domain}",
        f"TLS-Report-Submitter: {report.submitter}",
        "Auto-Submitted: auto-generated",
        "MIME-Version: 1.0",
        "Content-Type: multipart/report; report-type=tlsrpt;",
        f'\tboundary="{boundary}"',
    ]
    packed = base64.b64encode(report.body).decode()
    lines = [
        *head,
        "",
        f"--{boundary}",
        "Content-Type: text/plain; charset=us-ascii",
        "",
        f"This is a report of TLS (RFC 8460) about mail to {report.domain}",
        f"that {report.submitter} delivered.",
        "",
        f"--{boundary}",
        "Content-Type: application/tlsrpt+gzip",
        "Content-Transfer-Encoding: base64",
        "Content-Disposition: attachment;",
        f'\tfilename="{report.filename}"',
        "",
        *(packed[at : at + _LINE] for at in range(0, len(packed), _LINE)),
        f"--{boundary}--",
        "",
    ]
    raw = "\r\n".join(lines).encode()
    return Message(sender, recipients, report.subject, raw=raw, priority="bulk", owner=REPORTS_ID)
