"""Is the machine fit, and is everything on it where and as it should be?

Promises: a port is tried by binding it for an instant, a directory by its mode and file system;
nothing is written, and no key or password is shown.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from relay.cli import output
from relay.cli.doctor.findings import FAIL, OK, WARN, Check, Finding, Patient, judged
from relay.datadir import SECRETS
from relay.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from relay.settings import Settings

NO_SPACE = 64 << 20  # bytes free; whatever the floor
OTHER_FILES = 200  # descriptors beside one a session: pool, workers, HTTP, libraries
ENDS_SOON = 14  # days
_FORGETFUL = {"tmpfs", "ramfs"}
_ELSEWHERE = {"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"}


def check_python(_: Patient) -> Iterator[Finding]:
    """See whether this Python is new enough."""
    version = ".".join(map(str, sys.version_info[:3]))
    old = sys.version_info < (3, 11)
    yield Finding(
        "python", FAIL if old else OK, version, "Relay needs Python 3.11 or newer" if old else ""
    )


def check_settings(patient: Patient) -> Iterator[Finding]:
    """Read the settings as the relay would, and see whether it runs with them."""
    settings = patient.settings
    if patient.fault:
        yield Finding("settings", FAIL, output.line(patient.fault), "change that setting")
    if settings is None:
        return
    if not patient.fault:
        yield _settings(settings, patient.here)
    level = settings.log.level
    yield Finding(
        "log level",
        WARN if level == "debug" else OK,
        level,
        "debug is slow and verbose; use info unless you hunt something" if level == "debug" else "",
    )
    from relay.ip import is_loopback
    from relay.settings import parse_endpoint

    if not is_loopback(parse_endpoint(settings.smtp.bind)[0]) and all(
        name == "localhost" or name.endswith(".localhost") for name in settings.smtp.domains
    ):
        yield Finding(
            "domains",
            WARN,
            f"SMTP listens on {settings.smtp.bind}, but every domain is local",
            "set RELAY_SMTP__DOMAINS to the domains whose MX points here",
        )
    if not is_loopback(parse_endpoint(settings.http.bind)[0]) and not settings.http.link_base:
        yield Finding(
            "public URL",
            WARN,
            f"HTTP listens on {settings.http.bind} without a public URL",
            "set RELAY_HTTP__PUBLIC_URL: other Host headers are refused",
        )


def _settings(settings: Settings, here: Settings | None) -> Finding:
    """See whether what is set here is what the relay runs with."""
    from relay.settings import as_environment, chosen, show

    if here is None:
        return Finding("settings", OK, "valid")
    theirs = show(settings)
    others = [name for name, value in chosen(here).items() if theirs.get(name) != value]
    return judged(
        "settings",
        not others,
        f"set here, but not so in the relay that runs: {', '.join(map(as_environment, others))}"
        if others
        else "valid; those of the relay that runs",
        "all else here is judged by its settings; restart it to apply these",
    )


def check_bounces(patient: Patient) -> Iterator[Finding]:
    """See whether bounces can arrive, where mail leaves with return paths of this relay."""
    from relay.settings import others_reach, parse_endpoint

    settings = patient.settings
    if settings is None or not settings.outbound.bounce_domain:
        return
    domain = settings.outbound.bounce_domain
    bound = patient.bound("smtp", settings.smtp.bind)
    reached = others_reach(settings.smtp, [parse_endpoint(one)[0] for one in bound])
    listens = ", ".join(filter(None, (*bound, settings.smtp.lmtp)))
    # Amazon SES takes bounces to itself, and reports them over HTTP.
    yield judged(
        "bounces",
        reached or bool(settings.ingest.sns_topics),
        f"those to {domain} arrive at {listens}, if its MX leads there, to port 25"
        if reached
        else f"none arrives: SMTP listens on {listens}, for this machine alone, and the MX of "
        f"{domain} leads to port 25",
        "set RELAY_SMTP__BIND=0.0.0.0:25, or have whatever is at port 25 pass them on; then relay "
        f"domain check {domain}",
    )


def check_capture(patient: Patient) -> Iterator[Finding]:
    """See whether mail for others' domains is kept, and from whom."""
    from relay.settings import parse_endpoint, why_not_captured

    if patient.settings is None:
        return
    smtp = patient.settings.smtp
    # As it is told apart when it starts: by where it listens.
    bound = patient.bound("smtp", smtp.bind)
    listens = ", ".join(bound)
    if why := why_not_captured(smtp, [parse_endpoint(one)[0] for one in bound]):
        because = f", for {why}" if smtp.capture == "auto" else ""
        yield Finding("capture", OK, f"off{because} (RELAY_SMTP__CAPTURE={smtp.capture})")
        return
    yield judged(
        "capture",
        _is_local(bound),
        f"on: any address at {listens} is kept, and never leaves"
        if _is_local(bound)
        else f"SMTP listens on {listens}: mail for every domain is kept, and AUTH takes anything, "
        "in clear too",
        "set RELAY_SMTP__CAPTURE=auto, unless all who reach the port are your own applications",
    )


def check_submission(patient: Patient) -> Iterator[Finding]:
    """See whether programs can submit mail, and sign in from where they are."""
    if patient.settings is None:
        return
    settings = patient.settings
    clear = patient.bound("submission", settings.submission.bind)
    places = {"in clear": clear}
    if settings.smtp.certificate is not None:
        tls = patient.bound("submission_tls", settings.submission.tls_bind)
        places = {"in clear or by STARTTLS": clear, "in TLS": tls}
    found = ", ".join(f"{', '.join(bound)} {how}" for how, bound in places.items() if bound)
    if not found:
        yield Finding("submission", OK, "off")
        return
    good = settings.smtp.certificate is not None or _is_local(clear)
    yield judged(
        "submission",
        good,
        f"{found}, with a key that has the scope send"
        if good
        else f"{found}: without a certificate only this machine may sign in",
        "set RELAY_SMTP__TLS_CERT and RELAY_SMTP__TLS_KEY",
    )


def check_pop3(patient: Patient) -> Iterator[Finding]:
    """See whether mail readers can sign in from where they are."""
    if patient.settings is None:
        return
    bound = patient.bound("pop3", patient.settings.pop3.bind)
    if not bound:
        return
    yield judged(
        "pop3",
        patient.settings.smtp.certificate is not None or _is_local(bound),
        ", ".join(bound),
        "set RELAY_SMTP__TLS_CERT and RELAY_SMTP__TLS_KEY: without them only this machine signs in",
    )


def _is_local(bound: list[str]) -> bool:
    """Whether only this machine reaches all these places."""
    from relay.ip import is_loopback
    from relay.settings import parse_endpoint

    return all(is_loopback(parse_endpoint(one)[0]) for one in bound)


def check_letters(patient: Patient) -> Iterator[Finding]:
    """Can letters be written, and can those who get them follow their links?"""
    from relay.ip import is_loopback
    from relay.lifecycle.letters import letters_of
    from relay.settings import parse_endpoint

    settings = patient.settings
    if settings is None:
        return
    reached = (patient.run or {}).get("http") or f"http://{settings.http.bind}"
    base = settings.http.link_base or str(reached)
    try:
        letters_of(settings, base)
    except ConfigError as error:
        yield Finding("letters", FAIL, output.line(error), "see relay/lifecycle/templates")
        return
    unreachable = not settings.http.link_base and is_loopback(parse_endpoint(settings.http.bind)[0])
    yield judged(
        "letters",
        settings.outbound.upstream == "loop:" or not unreachable,
        f"their links lead to {base}",
        "only this machine reaches that: set RELAY_HTTP__PUBLIC_URL",
    )


def check_certificate(patient: Patient) -> Iterator[Finding]:
    """See whether the certificate of the mail ports is good, and for how long yet."""
    settings = patient.settings
    if settings is None or settings.smtp.certificate is None:
        return
    from datetime import UTC, datetime

    from cryptography import x509

    from relay.ports import certificate

    cert, key = settings.smtp.certificate
    try:
        certificate.Certificate.load(cert, key)
    except ConfigError as error:
        yield Finding("certificate", FAIL, output.line(error), "see `relay tls self-signed --help`")
        return
    found = x509.load_pem_x509_certificate(Path(cert).read_bytes())
    until = found.not_valid_after_utc
    days = (until - datetime.now(UTC)).days
    state = FAIL if days < 0 else WARN if days < ENDS_SOON else OK
    advice = "put a new one in its place; the relay takes it up by itself"
    names = _names(found)
    shown = ", ".join(map(output.line, names)) or "no name"
    yield Finding(
        "certificate",
        state,
        f"{cert}: for {shown}, {'ended' if days < 0 else 'ends'} on {until:%Y-%m-%d}",
        "" if state == OK else advice,
    )
    if not any(_belong(name, domain) for name in names for domain in settings.smtp.domains):
        yield Finding(
            "certificate names",
            WARN,
            f"{shown}: none that belongs to {', '.join(settings.smtp.domains)}",
            "who verifies it needs the name by which this relay is reached",
        )
    if stat.S_IMODE(os.stat(key).st_mode) & 0o077:
        yield Finding("key", WARN, f"{key} can be read by others", f"chmod 600 {key}")


def _names(certificate: Certificate) -> list[str]:
    """The host names and addresses that a certificate is for."""
    from cryptography import x509

    try:
        field = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (x509.ExtensionNotFound, ValueError):
        return []
    hosts = field.value.get_values_for_type(x509.DNSName)
    return [*hosts, *map(str, field.value.get_values_for_type(x509.IPAddress))]


def _belong(name: str, domain: str) -> bool:
    """Whether a name of a certificate may be that of the server of a domain."""
    name, domain = name.lower().removeprefix("*."), domain.lower()
    local = ("localhost", "127.0.0.1", "::1")
    if domain.endswith("localhost") and (name in local or name.endswith(".localhost")):
        return True
    return name == domain or name.endswith(f".{domain}") or domain.endswith(f".{name}")


def check_data_directory(patient: Patient) -> Iterator[Finding]:
    """See whether the data directory can be written and nobody else may read it."""
    path = patient.data.path
    if not path.exists():
        above = next(parent for parent in path.parents if parent.exists())
        if os.access(above, os.W_OK | os.X_OK):
            yield Finding("data directory", OK, f"{path} will be made at the first start")
        else:
            yield Finding(
                "data directory",
                FAIL,
                f"{path} cannot be made in {above}",
                "name another with --data-dir or RELAY_DATA_DIR",
            )
        return
    if not path.is_dir() or not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "data directory",
            FAIL,
            f"{path} is not a directory this user can write to",
            "change its owner, or name another with --data-dir or RELAY_DATA_DIR",
        )
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        patient.data.check()
    except ConfigError as error:
        found, _, advice = str(error).partition(": ")
        yield Finding("data directory", FAIL, found, advice)
        return
    if mode & 0o077:
        yield Finding(
            "data directory",
            WARN,
            f"{path} has mode {mode:04o}: others can look into it",
            f"chmod 700 {path}",
        )
    else:
        yield Finding("data directory", OK, f"{path}, mode {mode:04o}")
    for name in (*SECRETS, "run/relay.json"):
        file = path / name
        if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield Finding(name, FAIL, f"{file} can be read by others", f"chmod 600 {file}")


def check_file_system(patient: Patient) -> Iterator[Finding]:
    """Warn of a place that forgets at the next boot, or whose locks cannot be relied on."""
    path = patient.data.path
    existing = next(place for place in (path, *path.parents) if place.exists())
    kind = _kind_of(existing.resolve())
    if kind in _FORGETFUL:
        yield Finding(
            "file system",
            WARN,
            f"{path} is in memory ({kind}): all mail is gone at the next boot",
            "name a directory on a disk with --data-dir or RELAY_DATA_DIR",
        )
    elif kind in _ELSEWHERE:
        yield Finding(
            "file system",
            WARN,
            f"{path} is on another machine ({kind}), where locks and fsync may not hold",
            "use a local disk, or a PostgreSQL of your own (RELAY_DATABASE__URL)",
        )
    else:
        yield Finding("file system", OK, kind or "unknown")


def _kind_of(path: Path) -> str:
    try:
        mounts = Path("/proc/self/mounts").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""  # not Linux
    kinds = {}
    for line in mounts:
        _, place, kind, *_ = line.split(" ")
        kinds[place.replace("\\040", " ")] = kind  # a later mount hides an earlier one
    return next((kinds[str(p)] for p in (path, *path.parents) if str(p) in kinds), "")


def check_disk_space(patient: Patient) -> Iterator[Finding]:
    """See whether there is room for what comes."""
    from relay.settings import parse_floor
    from relay.storage import measure, usual_floor

    path = patient.data.path
    existing = next(place for place in (path, *path.parents) if place.exists())
    chosen = "" if patient.settings is None else patient.settings.storage.min_free
    disk = measure(existing)
    floor = (parse_floor(chosen) if chosen else usual_floor)(disk.total)
    state = FAIL if disk.free < max(floor, NO_SPACE) else WARN if disk.free < 2 * floor else OK
    found = f"{output.size(disk.free)} free; below {output.size(floor)} new mail is refused"
    yield Finding(
        "disk space",
        state,
        found if floor else f"{output.size(disk.free)} free, and no floor",
        "" if state == OK else "free some, move the data directory, or see RELAY_STORAGE__MIN_FREE",
    )


def check_ports(patient: Patient) -> Iterator[Finding]:
    """See whether the ports are free, or are held by this relay."""
    if patient.settings is None:
        return
    from relay.settings import parse_endpoint

    settings = patient.settings
    for name, entry, variable, setting in (
        ("http", "http", "RELAY_HTTP__BIND", settings.http.bind),
        ("smtp", "smtp", "RELAY_SMTP__BIND", settings.smtp.bind),
        *(
            [("submission", "submission", "RELAY_SUBMISSION__BIND", settings.submission.bind)]
            # Where nobody has set it, a free port is taken instead.
            if settings.submission.bind and "bind" in settings.submission.model_fields_set
            else []
        ),
        *(
            [
                (
                    "submission over TLS",
                    "submission_tls",
                    "RELAY_SUBMISSION__TLS_BIND",
                    settings.submission.tls_bind,
                )
            ]
            if settings.submission.tls_bind
            else []
        ),
        *([("pop3", "pop3", "RELAY_POP3__BIND", settings.pop3.bind)] if settings.pop3.bind else []),
        *(
            [("pop3 over TLS", "pop3_tls", "RELAY_POP3__TLS_BIND", settings.pop3.tls_bind)]
            if settings.pop3.tls_bind
            else []
        ),
        ("push", "devices_push", "RELAY_DEVICES__PUSH_BIND", settings.devices.push_bind),
        (
            "receive",
            "devices_receive",
            "RELAY_DEVICES__RECEIVE_BIND",
            settings.devices.receive_bind,
        ),
    ):
        host, port = parse_endpoint(setting)
        held = str((patient.run or {}).get(entry, "")).removeprefix("http://")
        if held:
            same = port in {0, parse_endpoint(held)[1]}
            yield Finding(
                f"{name} port",
                OK if same else WARN,
                f"{held}, held by this relay",
                "" if same else f"{variable} says {setting}; restart the relay to apply it",
            )
        elif port == 0:
            yield Finding(f"{name} port", OK, "any free port")
        else:
            yield _free(f"{name} port", host, port, variable)


def check_lmtp(patient: Patient) -> Iterator[Finding]:
    """See whether there is a place for the socket of LMTP."""
    path = "" if patient.settings is None else patient.settings.smtp.lmtp
    if not path:
        return
    if (patient.run or {}).get("lmtp") == path:
        yield Finding("lmtp socket", OK, f"{path}, held by this relay")
        return
    usable = os.access(Path(path).parent, os.W_OK | os.X_OK)
    yield Finding(
        "lmtp socket",
        OK if usable else FAIL,
        path if usable else f"{path}: its directory is not there, or not writable",
        "" if usable else "set RELAY_SMTP__LMTP to a path in a directory that is there",
    )


def _free(check: str, host: str, port: int, variable: str) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            advice = f"set {variable} to an address of this machine and a free port"
            if error.errno == errno.EADDRINUSE:
                advice = f"stop the program that holds it, or set {variable}"
            elif error.errno == errno.EACCES:
                advice = f"ports below 1024 need privileges; set {variable} to a higher one"
            return Finding(check, FAIL, f"{host}:{port}: {os.strerror(error.errno or 0)}", advice)
    return Finding(check, OK, f"{host}:{port} is free")


def check_open_files(patient: Patient) -> Iterator[Finding]:
    """See how many connections the limit of open files allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    sessions = 1000 if patient.settings is None else patient.settings.smtp.max_connections
    enough = hard == resource.RLIM_INFINITY or hard >= sessions + OTHER_FILES
    yield Finding(
        "open files",
        OK if enough else WARN,
        f"at most {'any number' if hard == resource.RLIM_INFINITY else hard}",
        "" if enough else f"raise the hard limit (ulimit -Hn) to {sessions + OTHER_FILES}",
    )


def check_embedded(patient: Patient) -> Iterator[Finding]:
    """See whether the embedded PostgreSQL can run here."""
    if patient.settings is None or patient.settings.database.url:
        return
    from relay.db.cluster import binaries, namespace_command

    try:
        yield Finding("embedded PostgreSQL", OK, str(binaries()))
    except ConfigError as error:
        yield Finding("embedded PostgreSQL", FAIL, output.line(error), "make setup")
    if os.geteuid() == 0:
        allowed = namespace_command() is not None
        yield Finding(
            "user namespaces",
            OK if allowed else WARN,
            "allowed" if allowed else "forbidden: PostgreSQL runs under an unprivileged account",
            "" if allowed else "allow them, or run the relay as an ordinary user",
        )


CHECKS: tuple[Check, ...] = (
    check_python,
    check_settings,
    check_capture,
    check_bounces,
    check_submission,
    check_pop3,
    check_letters,
    check_certificate,
    check_data_directory,
    check_file_system,
    check_disk_space,
    check_ports,
    check_lmtp,
    check_open_files,
    check_embedded,
)
