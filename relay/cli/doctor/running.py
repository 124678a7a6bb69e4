"""Does the relay run, is anything held up in it, and where does its mail go?

Promises: an upstream is greeted as deliveries greet it, over TLS where they would, and left without
credentials and without mail.
"""

from __future__ import annotations

import smtplib
import ssl
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from relay import __version__
from relay.cli import output
from relay.cli.client import Api
from relay.cli.doctor.findings import FAIL, OK, WARN, Check, Finding, Patient, judged
from relay.cli.exits import Failure

OLD = 600.0  # seconds that mail may be due and not be sent
MANY_RESTARTS = 10
UPSTREAM_TIMEOUT = 8.0  # seconds


def check_relay(patient: Patient) -> Iterator[Finding]:
    """See whether a relay runs here, and how it is."""
    run = patient.run
    if run is None:
        held = patient.data.is_held()
        yield Finding(
            "relay",
            WARN,
            "starting or stopping" if held else "not running",
            "" if held else "relay up",
        )
        return
    if "http" not in run:
        yield Finding("relay", OK, f"running without control, pid {run['pid']}")
        return
    said = False
    try:
        api = Api.find(patient.data.path)
        try:
            ready = api.call("GET", "/readyz", timeout=10.0).json()
        except Failure as failure:
            said = True
            yield Finding(
                "relay", FAIL, output.line(failure), "relay status and relay tail say more"
            )
        else:
            yield Finding("relay", OK, f"ready at {api.base}, pid {run['pid']}")
            yield from notices(ready)
        version = str(api.get("/openapi.json")["info"]["version"])
        yield judged(
            "version",
            version == __version__,
            f"running {version}, this command {__version__}",
            "restart the relay to run the installed version",
        )
        yield check_actors(api.get("/api/v1/supervision"))
        yield check_queue(api.get("/api/v1/queue"))
    except Failure as failure:
        if not said:  # what is not ready answers nothing else, either
            yield Finding("relay", FAIL, output.line(failure), "relay tail says more")


def notices(ready: dict[str, Any]) -> Iterator[Finding]:
    """Warn of what the running relay holds back: its settings may differ from this shell's."""
    for notice in ready.get("notices") or ():
        yield Finding(
            "notice",
            WARN,
            output.line(notice),
            "the running relay's own settings decide; relay tail --level warning says more",
        )


def check_actors(tree: dict[str, Any]) -> Finding:
    """See which actors do not run, or were restarted."""
    nodes = [tree]
    for node in nodes:
        nodes += node["children"]
    paused = list(_paused(tree))
    if paused:
        return Finding(
            "actors",
            WARN,
            f"paused: {', '.join(paused)}",
            f"relay actor resume {paused[0]}",
        )
    actors = sum(not node["children"] for node in nodes)
    restless = [n["name"] for n in nodes if n["restarts"] >= MANY_RESTARTS]
    return judged(
        "actors",
        not restless,
        f"restarted again and again: {', '.join(restless)}" if restless else f"{actors} run",
        f"relay tail --level error --actor {restless[0] if restless else ''}",
    )


def _paused(node: dict[str, Any]) -> Iterator[str]:
    """Yield who is paused: a group alone where all in it are."""
    if node["state"] == "paused":
        yield node["name"]
        return
    for child in node["children"]:
        yield from _paused(child)


def check_queue(queue: dict[str, Any]) -> Finding:
    """See what waits in the queue, and for how long."""
    if queue["paused"]:
        return Finding(
            "queue", WARN, f"paused, with {queue['queued']} messages in it", "relay queue resume"
        )
    oldest = queue["oldest_due_seconds"] or 0.0
    if oldest > OLD:
        return Finding(
            "queue",
            WARN,
            f"{queue['due']} messages are due, the oldest for {output.span(oldest)}",
            "relay tail --level warning --actor sender says what holds them up",
        )
    return judged(
        "queue",
        not queue["held"],
        f"{queue['held']} messages are held for a decision"
        if queue["held"]
        else f"{queue['queued']} queued, none late",
        "relay queue list --status held; then relay queue retry or cancel",
    )


def check_upstream(patient: Patient) -> Iterator[Finding]:
    """See where mail for others goes, as far as that can be seen without sending any."""
    settings = patient.settings
    if settings is None:
        return
    from relay.settings import show

    upstream = settings.outbound.upstream
    if upstream == "loop:":
        real = [d for d in settings.smtp.domains if not _local(d)]
        yield judged(
            "upstream",
            not real,
            f"loop: mail to others never leaves this relay, though it serves {', '.join(real)}"
            if real
            else "loop: nothing leaves this machine",
            "set RELAY_OUTBOUND__UPSTREAM to your provider's smtps:// or smtp+starttls:// server",
        )
        return
    if upstream == "mx:":
        name = settings.smtp.domains[0]
        yield judged(
            "upstream",
            not _local(name),
            f"mx: straight to the servers of each domain, greeted as {name}",
            "set RELAY_SMTP__DOMAINS to a name that your address has: others refuse this one",
        )
        yield _dane(settings.dns.servers)
        return
    shown = str(show(settings)["outbound.upstream"])
    fault = _trouble(upstream, settings.outbound.ca_file)
    yield judged(
        "upstream",
        fault is None,
        f"{shown} answers" if fault is None else f"{shown}: {fault}",
        "check host, port and firewall; until it answers, mail waits",
        bad=FAIL,
    )


def _dane(servers: Sequence[str]) -> Finding:
    """Whether the DNS servers validate, without which certificates are not held against TLSA."""
    import trio

    from relay.checks.published import dane
    from relay.dns.resolver import Resolver
    from relay.settings import parse_dns_server

    proof = trio.run(Resolver([parse_dns_server(server) for server in servers]).proof)
    said = dane("", proof)
    return judged(
        "dane",
        said.ok is True,
        said.detail,
        "have a validating resolver on this machine (unbound), and RELAY_DNS__SERVERS name it",
    )


def _local(domain: str) -> bool:
    return domain == "localhost" or domain.endswith(".localhost")


def _trouble(upstream: str, ca_file: str) -> str | None:
    """Greet the server, over TLS if it is to be, and say what is wrong, if anything is."""
    parts = urlsplit(upstream)
    host = parts.hostname or ""
    context = ssl.create_default_context()
    if ca_file:
        context.load_verify_locations(ca_file)
    port = parts.port or {"smtps": 465, "smtp+starttls": 587}.get(parts.scheme, 25)
    try:
        session: smtplib.SMTP
        if parts.scheme == "smtps":
            session = smtplib.SMTP_SSL(host, port, timeout=UPSTREAM_TIMEOUT, context=context)
        else:
            session = smtplib.SMTP(host, port, timeout=UPSTREAM_TIMEOUT)
        with session:
            session.ehlo()
            if parts.scheme == "smtp+starttls":
                session.starttls(context=context)
                session.ehlo()
            if parts.username and not session.has_extn("auth"):
                return "it takes no password"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not trusted ({error.verify_message})"
    except (OSError, smtplib.SMTPException) as error:
        return output.line(getattr(error, "strerror", None) or error) or type(error).__name__
    return None


CHECKS: tuple[Check, ...] = (check_upstream, check_relay)
