"""Every setting of Relay: its name, its default and what it may be.

A value comes from the environment (`RELAY_SECTION__NAME`), else from the TOML file given with
`--config`, else from the default here.  A list may be written as one text wherever it stands, with
commas or as JSON (`Texts`).  `settings.toml` beside this file, which is `config/relay.toml`, shows
all of them with the reasons; a test holds the two together.

Promises: a setting that is misspelt or malformed is a `ConfigError` of one sentence that
names the setting as its author wrote it, and for an unknown name the nearest known one.
Nothing here reads the clock, the network or the data directory.
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import os
import re
import tomllib
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

from cryptography.fernet import Fernet
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
)

from relay.addresses import canonical_domain
from relay.errors import ConfigError
from relay.ip import is_loopback

PREFIX = "RELAY_"
# What the clients read (clients/): it stands in the shell of whoever tests with a relay of theirs.
_OF_CLIENTS = {"RELAY_URL", "RELAY_TOKEN"}
_OUTSIDE = {"RELAY_DATA_DIR", "RELAY_CONFIG", *_OF_CLIENTS}  # no settings, whoever reads them

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NO_DURATION = "a duration is a number of seconds, or a number with ms, s, m, h or d"
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?\s*", re.ASCII)


def parse_duration(value: object) -> object:
    """Turn `5`, `0.5`, `"250ms"`, `"7d"` into seconds; anything else is a ValueError."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if isinstance(value, str):
        return duration(value)
    raise ValueError(_NO_DURATION)


def duration(text: str) -> float:
    """Return the seconds of `"5"`, `"250ms"`, `"7d"`; anything else is a ValueError."""
    if match := _DURATION.fullmatch(text):
        return float(match[1]) * _UNITS[match[2] or "s"]
    raise ValueError(_NO_DURATION)


_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", re.ASCII | re.IGNORECASE)
_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SHARE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*%\s*", re.ASCII)


def parse_size(value: object) -> object:
    """Turn `1000`, `"64k"`, `"1.5G"` (k is 1024) into bytes; anything else is a ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        return int(float(match[1]) * _SIZES[match[2].lower()])
    raise ValueError("a size is a number of bytes, or a number with k, M or G")


def parse_floor(value: object) -> Callable[[int], int]:
    """Return what makes a floor of the size of a disk: a share of it, or so many bytes."""
    if isinstance(value, str) and (match := _SHARE.fullmatch(value)):
        percent = float(match[1])
        if percent <= 100:
            return lambda total: int(total * percent / 100)
    try:
        size = parse_size(value)
    except ValueError:
        raise ValueError(
            "it must be a number of bytes, a number with k, M or G, or a percentage of the disk"
        ) from None
    assert isinstance(size, int)
    return lambda total: size


def parse_endpoint(value: str) -> tuple[str, int]:
    """Split `host:port` (an IPv6 host in brackets) into its two parts."""
    host, colon, port = value.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or not host or not port.isascii() or not port.isdigit():
        raise ValueError("it must be host:port, for example 127.0.0.1:2525 or [::1]:2525")
    if int(port) > 65535:
        raise ValueError("a port is a number from 0 to 65535")
    if ":" in host and not bracketed:
        raise ValueError("an IPv6 host is written in brackets, for example [::1]:2525")
    return (host[1:-1] if bracketed else host), int(port)


def parse_dns_server(value: str) -> tuple[str, int]:
    """Split `address[:port]` (53 by default; IPv6 in brackets where a port follows)."""
    try:
        return str(ipaddress.ip_address(value)), 53
    except ValueError:
        pass
    try:
        host, port = parse_endpoint(value)
        return str(ipaddress.ip_address(host)), port
    except ValueError:
        raise ValueError(
            "each is an IP address, for example 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:5353"
        ) from None


_IPV6_FIRST = re.compile(r"\[[0-9a-f:.]*:[0-9a-f:.]*\]", re.ASCII | re.IGNORECASE)


def parse_texts(value: object) -> object:
    """Split `"one, two"` or read `'["one", "two"]'`, empty ones left out; what is no text is kept.

    ValueError: it begins as JSON does (not as `[::1]:53` does) and is no list of texts.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text.startswith("[") or _IPV6_FIRST.match(text):
        return tuple(part for part in map(str.strip, text.split(",")) if part)
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        items = None
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise ValueError('a list is written as one, two or as JSON, ["one", "two"]')
    return tuple(items)


def parse_tables(value: object) -> object:
    """Read `'[{"name": "bulk"}]'`, or take such a list as it is; ValueError: it is none.

    Dates of TOML become texts.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value or "[]")
        except (ValueError, RecursionError):
            value = None
    if not isinstance(value, list | tuple) or not all(isinstance(one, dict) for one in value):
        raise ValueError('a list of tables is written as JSON, [{"name": "…"}]')
    return tuple(map(_as_json, value))


def _as_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _as_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(one) for one in value]
    if isinstance(value, date):
        return value.isoformat()
    return value


def _check_address(value: str) -> str:
    parse_endpoint(value)
    return value


def _check_floor(value: object) -> object:
    if value != "":
        parse_floor(value)
    return str(value)


Size = Annotated[int, BeforeValidator(parse_size)]
Floor = Annotated[str, BeforeValidator(_check_floor)]
Texts = Annotated[tuple[str, ...], BeforeValidator(parse_texts)]
Tables = Annotated[tuple[dict[str, Any], ...], BeforeValidator(parse_tables)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
Bind = Annotated[str, AfterValidator(_check_address)]
OptionalBind = Annotated[str, AfterValidator(lambda value: value and _check_address(value))]
"""A port that need not be: empty turns it off."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Database(_Section):
    """The PostgreSQL to use, and how many connections to it."""

    url: str = ""
    direct_url: str = ""
    pool_size: Annotated[int, Field(ge=2, le=200)] = 8
    prepare: bool = True
    call_timeout: Annotated[Seconds, Field(ge=0.1, le=20)] = 15.0


_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{32,512}")  # RFC 6750, and as long as one may be


def _token(value: str) -> str:
    if value and not _TOKEN.fullmatch(value):
        raise ValueError(
            "a token is 32 to 512 letters, digits and any of . _ ~ + / = -, and random: for "
            "example what `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'` prints"
        )
    return value


_LEAST_VARIED = 8


def _varied(value: str) -> str:
    """A token that no guess of a repeated text finds."""
    if value and len(set(value)) < _LEAST_VARIED:
        raise ValueError(
            f"a token has {_LEAST_VARIED} or more different characters, as a random one has: for "
            "example what `python3 -c 'import secrets; print(secrets.token_urlsafe(32))'` prints"
        )
    return value


Token = Annotated[str, AfterValidator(_token)]
"""A bearer token that the operator chose; empty: none."""


class Http(_Section):
    """The control plane's address, and the addresses that people see."""

    bind: Bind = "127.0.0.1:8025"
    public_url: Texts = ()
    metrics_token: Token = ""
    anonymous_rate: Annotated[float, Field(ge=0, le=1_000_000)] = 100.0
    trusted_proxies: Texts = ()

    @field_validator("trusted_proxies")
    @classmethod
    def _trusted_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network)  # a ValueError says what is wrong
        return value

    @field_validator("public_url")
    @classmethod
    def _public_url(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname:
                raise ValueError(
                    "it must be an http or https address, for example https://relay.example"
                )
        return tuple(url.rstrip("/") for url in value)

    @property
    def link_base(self) -> str:
        """The public address that stands in links; empty: none was said."""
        return self.public_url[0] if self.public_url else ""


_LINKED = re.compile(
    r"(?=.{1,400}\Z)(?i:https)://[A-Za-z0-9_.:\[\]-]+(?:/[A-Za-z0-9_.~%!$&'*+=:/-]*)?"
)
"""A public address that may stand in the header of mail, where a line has 998 bytes."""

_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)


MOST_PROCESSES = 64

CONNECTIONS_A_PROCESS = 4
"""Connections to the database that each of several SMTP processes may have: one commits, two store
large mail, one is asked for mailboxes."""


def processes_on(cores: int) -> int:
    """How many SMTP processes `auto` means: one for two cores, and the relay itself below four.

    What one accepts keeps PostgreSQL and the parsers as busy as itself, and two share fewer commits
    and look-ups; where that takes a core from them, two accept less than one.
    """
    return max(1, min(cores // 2, MOST_PROCESSES))


def _processes(value: object) -> object:
    """Turn `2` and `"2"` into a number, and let `"auto"` be."""
    if value == "auto":
        return value
    try:
        number = int(value) if isinstance(value, int | str) else 0
    except ValueError:
        number = 0
    if isinstance(value, bool) or not 1 <= number <= MOST_PROCESSES:
        raise ValueError(f"it must be auto, or a number from 1 to {MOST_PROCESSES}")
    return number


class Smtp(_Section):
    """The SMTP listener, its limits, and the operator's own filter."""

    bind: Bind = "127.0.0.1:2525"
    share_port: bool = False
    processes: Annotated[int | Literal["auto"], BeforeValidator(_processes)] = 1
    domains: Annotated[Texts, Field(min_length=1)] = ("relay.localhost",)
    max_message_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = 26_214_400
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 1000
    max_connections_per_peer: Annotated[int, Field(ge=1, le=100_000)] = 100
    max_recipients: Annotated[int, Field(ge=1, le=10_000)] = 100
    capture: Literal["auto", "on", "off"] = "auto"
    capture_ttl: Annotated[Seconds, Field(gt=0)] = 86_400.0
    capture_mailboxes: Annotated[int, Field(ge=1, le=1_000_000)] = 10_000
    chaos: bool = False
    filter: str = ""
    filter_timeout: Seconds = 30.0
    trusted_proxies: Texts = ()
    lmtp: str = ""
    tls_cert: str = ""
    tls_key: str = ""

    @field_validator("trusted_proxies")
    @classmethod
    def _trusted_proxies(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for network in value:
            ipaddress.ip_network(network)  # a ValueError says what is wrong
        return value

    @field_validator("lmtp")
    @classmethod
    def _lmtp(cls, value: str) -> str:
        if value and not value.startswith("/"):
            raise ValueError("it must be the absolute path of a socket, as /run/relay/lmtp")
        return value

    @property
    def certificate(self) -> tuple[str, str] | None:
        """The files of certificate and key; None: no TLS."""
        return (self.tls_cert, self.tls_key) if self.tls_cert else None

    @field_validator("domains")
    @classmethod
    def _domains(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(dict.fromkeys(name.strip().lower().rstrip(".") for name in value))
        for name in lowered:
            if len(name) > 253 or not all(_LABEL.fullmatch(label) for label in name.split(".")):
                raise ValueError(f"{name!r} is not a domain name")
        return lowered

    @field_validator("filter")
    @classmethod
    def _filter(cls, value: str) -> str:
        module, colon, name = value.partition(":")
        if value and not (colon and module and name.isidentifier()):
            raise ValueError("it must be module:Class, for example myfilters:SpamFilter")
        return value


def captures(smtp: Smtp, hosts: Iterable[str] = ()) -> bool:
    """Whether mail for others' domains is captured, listening on `hosts` (none: on `bind`)."""
    return not why_not_captured(smtp, hosts)


def why_not_captured(smtp: Smtp, hosts: Iterable[str] = ()) -> str:
    """Return why mail for others' domains is not captured, as a clause; empty: it is."""
    if smtp.capture != "auto":
        return "" if smtp.capture == "on" else "RELAY_SMTP__CAPTURE says so"
    if not all(map(is_loopback, list(hosts) or [parse_endpoint(smtp.bind)[0]])):
        return "others than this machine reach SMTP"
    # A proxy on this machine, too: it is there to let others in.
    return "behind RELAY_SMTP__TRUSTED_PROXIES may be anybody" if smtp.trusted_proxies else ""


def others_reach(smtp: Smtp, hosts: Iterable[str] = ()) -> bool:
    """Whether mail of others than this machine comes in, listening on `hosts` (none: on `bind`)."""
    bound = list(hosts) or [parse_endpoint(smtp.bind)[0]]
    # A proxy on this machine, and a server in front, are there to let others in.
    return not all(map(is_loopback, bound)) or bool(smtp.trusted_proxies or smtp.lmtp)


_REPORT_FIELD = re.compile(r"[Xx]-[A-Za-z0-9-]{1,58}", re.ASCII)
_SECRET_BYTES = 16
"""Bytes that a secret has at least."""
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:@[a-z]{2}(?:-[a-z0-9]+){1,4})?", re.ASCII)


class Ingest(_Section):
    """Mail that arrives by other ways than SMTP."""

    sns_topics: Texts = ()
    s3_buckets: Texts = ()
    s3_access_key: str = ""
    s3_secret_key: str = ""
    s3_session_token: str = ""
    s3_endpoint: str = ""
    notification_secrets: Texts = ()

    @field_validator("notification_secrets")
    @classmethod
    def _notification_secrets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for secret in value:
            key = secret.encode()
            if secret.startswith("whsec_"):
                try:
                    key = b64decode(secret.removeprefix("whsec_"), validate=True)
                except ValueError as error:
                    raise ValueError("what follows whsec_ must be base64") from error
            if len(key) < _SECRET_BYTES:
                raise ValueError(f"a secret has at least {_SECRET_BYTES} bytes")
        return value

    @field_validator("s3_buckets")
    @classmethod
    def _s3_buckets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            if not _BUCKET.fullmatch(text):
                raise ValueError(f"{text!r} is not a bucket or bucket@region")
        return value

    @field_validator("s3_endpoint")
    @classmethod
    def _s3_endpoint(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (
            parts.scheme not in {"http", "https"}
            or not parts.hostname
            or "@" in parts.netloc
            or parts.query
            or parts.fragment
        ):
            raise ValueError("it must be an http or https address, for example https://minio:9000")
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ValueError("mail is fetched in clear from loopback only; use https")
        return value.rstrip("/")


class Submission(_Section):
    """The ports on which programs submit mail that leaves."""

    bind: OptionalBind = "127.0.0.1:2587"
    tls_bind: OptionalBind = ""
    reports: bool = True
    delayed_after: Annotated[Seconds, Field(gt=0)] = 4 * 3600.0
    lifetime: Annotated[Seconds, Field(ge=1)] = 5 * 86_400.0


class Pop3(_Section):
    """The ports on which mailboxes are fetched."""

    bind: OptionalBind = ""
    tls_bind: OptionalBind = ""
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = 200
    max_connections_per_peer: Annotated[int, Field(ge=1, le=100_000)] = 50
    idle_timeout: Annotated[Seconds, Field(gt=0)] = 600.0


class Expiry(_Section):
    """How mailboxes end."""

    sweep_every: Annotated[Seconds, Field(gt=0)] = 60.0
    retention: Seconds = 7 * 86400.0


class Outbound(_Section):
    """Delivery to others."""

    upstream: str = "loop:"
    concurrency: Annotated[int, Field(ge=1, le=10_000)] = 32
    lease_timeout: Annotated[Seconds, Field(ge=2)] = 300.0
    max_attempts: Annotated[int, Field(ge=1, le=100)] = 10
    retry_unit: Seconds = 60.0
    mx_lifetime: Annotated[Seconds, Field(ge=1, le=366 * 86_400)] = 5 * 86_400.0
    route_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    domain_rate: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    route_connections: Annotated[int, Field(ge=0)] = 0
    domain_connections: Annotated[int, Field(ge=0)] = 0
    retention: Annotated[Seconds, Field(ge=86_400)] = 30 * 86_400.0
    private_upstreams: bool = False
    release_to: Texts = ()
    bounce_domain: str = ""
    report_field: str = ""
    unsubscribe: bool = False
    ca_file: str = ""
    private_mx: bool = False
    mx_port: Annotated[int, Field(ge=1, le=65_535)] = 25
    tls_reports: str = ""
    shaping: str = ""
    sources: Tables = ()

    @field_validator("bounce_domain")
    @classmethod
    def _bounce_domain(cls, value: str) -> str:
        if not value:
            return value
        try:
            return canonical_domain(value)
        except ValueError as error:
            raise ValueError(f"it must be a domain: {error}") from error

    @field_validator("report_field")
    @classmethod
    def _report_field(cls, value: str) -> str:
        if value and not _REPORT_FIELD.fullmatch(value):
            raise ValueError("it must be the name of a header field that begins with X-")
        return value

    @field_validator("upstream")
    @classmethod
    def _upstream(cls, value: str) -> str:
        if value in {"loop:", "mx:"}:
            return value
        parts = urlsplit(value)
        if parts.scheme not in {"smtp", "smtp+starttls", "smtps"} or not parts.hostname:
            raise ValueError(
                "it must be loop:, mx:, smtp://, smtp+starttls:// or "
                "smtps://user:password@host:port"
            )
        if parts.scheme == "smtp" and not is_loopback(parts.hostname):
            raise ValueError(
                "smtp:// sends in clear and is for loopback only; use smtp+starttls:// or smtps://"
            )
        return value


class Webhooks(_Section):
    """Posts to addresses that others choose."""

    allow_private: bool = False
    timeout: Annotated[Seconds, Field(gt=0, le=30)] = 15.0
    concurrency: Annotated[int, Field(ge=1, le=1000)] = 16


class Collector(_Section):
    """Lifecycle mail, in batches and within a budget."""

    batch_limit: Annotated[int, Field(ge=1, le=100_000)] = 10
    batch_timeout: Seconds = 5.0
    monthly_budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    price_per_thousand: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    budget_covers: Literal["letters", "all"] = "letters"
    adaptive: bool = True
    sender: str = ""
    templates: str = ""


class Lifecycle(_Section):
    """The pages that account mail links to."""

    return_url: str = ""

    @field_validator("return_url")
    @classmethod
    def _return_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if value and (parts.scheme not in {"http", "https"} or not parts.hostname):
            raise ValueError("it must be the http:// or https:// address of a page")
        # It stands in a header and in a policy.
        if not value.isascii() or not value.isprintable() or any(c in value for c in " ;,'\"<>"):
            raise ValueError("it must not hold spaces, quotes, commas or semicolons")
        return value


class Devices(_Section):
    """The device inbox."""

    key: str = ""
    store: Literal["sqlite", "postgres"] = "sqlite"
    push_bind: Bind = "127.0.0.1:7701"
    receive_bind: Bind = "127.0.0.1:7700"
    ttl: Annotated[Seconds, Field(gt=0)] = 30 * 86400.0
    reap_every: Annotated[Seconds, Field(gt=0)] = 3600.0
    source_rate: Size = 4 << 20
    max_bytes: Size = 10 << 30

    @field_validator("key")
    @classmethod
    def _key(cls, value: str) -> str:
        if value and not re.fullmatch(r"[0-9a-fA-F]{64}", value):
            raise ValueError("it must be 64 hexadecimal digits, as `relay device keygen` prints")
        return value


class Dns(_Section):
    """Whom to ask about names."""

    servers: Texts = ()

    @field_validator("servers")
    @classmethod
    def _servers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for server in value:
            parse_dns_server(server)
        return value


class Storage(_Section):
    """The disk of the data directory."""

    min_free: Floor = ""


class Log(_Section):
    """What is logged."""

    level: Literal["debug", "info", "warning", "error", "critical"] = "info"


class Settings(_Section):
    """All settings, checked."""

    secret_key: str = ""
    encryption_keys: str = ""
    admin_token: Annotated[Token, AfterValidator(_varied)] = ""
    database: Database = Database()
    http: Http = Http()
    smtp: Smtp = Smtp()
    submission: Submission = Submission()
    pop3: Pop3 = Pop3()
    ingest: Ingest = Ingest()
    expiry: Expiry = Expiry()
    outbound: Outbound = Outbound()
    webhooks: Webhooks = Webhooks()
    collector: Collector = Collector()
    lifecycle: Lifecycle = Lifecycle()
    devices: Devices = Devices()
    dns: Dns = Dns()
    storage: Storage = Storage()
    log: Log = Log()

    @property
    def smtp_processes(self) -> int:
        """How many processes serve SMTP; `auto`: what the cores that this one may use can feed."""
        if self.smtp.processes == "auto":
            return processes_on(len(os.sched_getaffinity(0)))
        return self.smtp.processes

    @property
    def database_connections(self) -> int:
        """How many connections to the database this relay may have, of its pool and processes."""
        processes = self.smtp_processes
        more = CONNECTIONS_A_PROCESS * processes if processes > 1 else 0
        return self.database.pool_size + more

    @field_validator("secret_key")
    @classmethod
    def _secret_key(cls, value: str) -> str:
        for key in filter(None, (part.strip() for part in value.split(","))):
            if not re.fullmatch(r"[0-9a-fA-F]{64}", key):
                raise ValueError(
                    "each key is 64 hexadecimal digits; several are separated by commas"
                )
        return value

    @field_validator("encryption_keys")
    @classmethod
    def _encryption_keys(cls, value: str) -> str:
        for key in filter(None, (part.strip() for part in value.split(","))):
            try:
                Fernet(key)
            except ValueError as error:
                raise ValueError(
                    "each key is a Fernet key (44 characters of URL-safe base64); "
                    "several are separated by commas"
                ) from error
        return value


SECTIONS: dict[str, type[_Section]] = {
    name: field.annotation
    for name, field in Settings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, _Section)
}


def known_names() -> list[str]:
    """Return every setting as `section.name` (or `name` alone at the top), in order."""
    names: list[str] = []
    for name in Settings.model_fields:
        section = SECTIONS.get(name)
        names += [name] if section is None else [f"{name}.{key}" for key in section.model_fields]
    return names


def as_environment(name: str) -> str:
    """Return the environment variable of a setting: `smtp.bind` is `RELAY_SMTP__BIND`."""
    return PREFIX + name.upper().replace(".", "__")


def load(*, config: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Read and check the settings; every fault is a `ConfigError` of one sentence."""
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    written: dict[str, str] = {}  # setting -> how its author spelt it, for the error
    if config is not None:
        _read_file(config, values, written)
    _read_environment(environ, values, written)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise ConfigError(_sentence(error, written)) from error
    if settings.admin_token and settings.admin_token == settings.http.metrics_token:
        raise ConfigError(
            "RELAY_HTTP__METRICS_TOKEN is told to those who read figures, and RELAY_ADMIN_TOKEN "
            "opens everything: set two different tokens."
        )
    if (settings.collector.monthly_budget is None) != (
        settings.collector.price_per_thousand is None
    ):
        raise ConfigError(
            "RELAY_COLLECTOR__MONTHLY_BUDGET and RELAY_COLLECTOR__PRICE_PER_THOUSAND make a rate "
            "together: set both or neither."
        )
    if bool(settings.smtp.tls_cert) != bool(settings.smtp.tls_key):
        raise ConfigError(
            "RELAY_SMTP__TLS_CERT and RELAY_SMTP__TLS_KEY are a certificate and its key: set both "
            "or neither."
        )
    if settings.submission.tls_bind and not settings.smtp.tls_cert:
        raise ConfigError(
            "RELAY_SUBMISSION__TLS_BIND needs a certificate: set RELAY_SMTP__TLS_CERT and "
            "RELAY_SMTP__TLS_KEY."
        )
    if settings.pop3.tls_bind and not settings.smtp.tls_cert:
        raise ConfigError(
            "RELAY_POP3__TLS_BIND needs a certificate: set RELAY_SMTP__TLS_CERT and "
            "RELAY_SMTP__TLS_KEY."
        )
    if settings.smtp.filter and settings.smtp_processes > 1:
        raise ConfigError(
            "RELAY_SMTP__FILTER is asked by sessions of one process: with it, set "
            "RELAY_SMTP__PROCESSES to 1."
        )
    if settings.smtp.chaos and settings.smtp_processes > 1:
        raise ConfigError(
            "RELAY_SMTP__CHAOS is for sessions of one process: with it, set "
            "RELAY_SMTP__PROCESSES to 1."
        )
    if settings.smtp.chaos and not is_loopback(parse_endpoint(settings.smtp.bind)[0]):
        raise ConfigError(
            "RELAY_SMTP__CHAOS makes mail go wrong on demand, for applications on this machine: "
            "with it, RELAY_SMTP__BIND must be a loopback address."
        )
    if settings.ingest.s3_buckets and not (
        settings.ingest.s3_access_key and settings.ingest.s3_secret_key
    ):
        raise ConfigError(
            "RELAY_INGEST__S3_BUCKETS are read with RELAY_INGEST__S3_ACCESS_KEY and "
            "RELAY_INGEST__S3_SECRET_KEY: set both."
        )
    bounces = settings.outbound.bounce_domain
    if bounces and bounces in map(canonical_domain, settings.smtp.domains):
        raise ConfigError(
            "RELAY_OUTBOUND__BOUNCE_DOMAIN is one of RELAY_SMTP__DOMAINS: it must be a domain that "
            "is used for nothing else, for example returns.shop.example."
        )
    if settings.outbound.unsubscribe and not _LINKED.fullmatch(settings.http.link_base):
        raise ConfigError(
            "RELAY_OUTBOUND__UNSUBSCRIBE puts links into mail that receivers' servers call: with "
            "it, RELAY_HTTP__PUBLIC_URL (the first, if there are several) must be an https "
            "address, for example https://relay.example, in at most 400 characters of ASCII and "
            "without a password or a query."
        )
    if settings.collector.monthly_budget and settings.collector.price_per_thousand:
        letters = settings.collector.monthly_budget / settings.collector.price_per_thousand * 1000
        if letters < 1:
            raise ConfigError(
                "RELAY_COLLECTOR__MONTHLY_BUDGET does not pay for a single letter at "
                "RELAY_COLLECTOR__PRICE_PER_THOUSAND."
            )
    return settings


Source = Literal["default", "file", "environment"]
"""Where the value of a setting comes from."""


def sources(
    *, config: Path | None = None, environ: Mapping[str, str] | None = None
) -> dict[str, Source]:
    """Return where `load` finds each setting that somebody has set; the others have defaults."""
    in_file: dict[str, str] = {}
    in_environment: dict[str, str] = {}
    if config is not None:
        _read_file(config, {}, in_file)
    _read_environment(os.environ if environ is None else environ, {}, in_environment)
    of_file: dict[str, Source] = dict.fromkeys(in_file, "file")
    of_environment: dict[str, Source] = dict.fromkeys(in_environment, "environment")
    return of_file | of_environment


def ignored(environ: Mapping[str, str] | None = None) -> list[str]:
    """Return the variables that look like ours and that Kubernetes made for a Service."""
    environ = os.environ if environ is None else environ
    return [name for name in sorted(environ) if _is_of_a_service(name, environ[name])]


def _is_of_a_service(variable: str, value: str) -> bool:
    if re.match(r"RELAY_(PORT(_|$)|SERVICE_)", variable):  # of a Service named relay
        return True
    # Of relay-smtp and the like: no setting has this shape, for all have two underscores.
    match = re.fullmatch(
        r"RELAY(?:_[A-Z0-9]+)+?_(SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9]+)*|"
        r"PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)?)",
        variable,
    )
    if match is None:
        return False
    return match[1] != "PORT" or re.match(r"(tcp|udp|sctp)://", value) is not None


def _read_file(path: Path, values: dict[str, Any], written: dict[str, str]) -> None:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"The configuration file {path} cannot be read: {error.strerror}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not valid TOML: {error}.") from error
    known = known_names()
    for name, value in table.items():
        pairs = value.items() if name in SECTIONS and isinstance(value, dict) else [(None, value)]
        for key, item in pairs:
            full = name if key is None else f"{name}.{key}"
            if full not in known:
                raise ConfigError(_unknown(f"{full} (in {path})", full, known))
            written[full] = f"{full} (in {path})"
            if key is None:
                values[name] = item
            else:
                values.setdefault(name, {})[key] = item


def _read_environment(
    environ: Mapping[str, str], values: dict[str, Any], written: dict[str, str]
) -> None:
    known = {as_environment(name): name for name in known_names()}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or variable in _OUTSIDE:
            continue
        if variable not in known and _is_of_a_service(variable, environ[variable]):
            continue
        if variable not in known:
            raise ConfigError(_unknown(variable, variable, list(known)))
        name = known[variable]
        section, _, key = name.partition(".")
        value = _from_text(name, environ[variable])
        written[name] = variable
        if key:
            values.setdefault(section, {})[key] = value
        else:
            values[section] = value


def _from_text(name: str, text: str) -> object:
    section, _, key = name.partition(".")
    owner = SECTIONS.get(section)
    if owner is None or not key:
        return text
    if not text and owner.model_fields[key].default is None:
        return None
    return text


def _unknown(shown: str, name: str, known: list[str]) -> str:
    # Never a secret: who follows such a hint makes what they hold, a password, this relay's key.
    secret = {*_SECRET, *map(as_environment, _SECRET)}
    offered = [one for one in known if one not in secret]
    near = difflib.get_close_matches(name, offered, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]}?" if near else "; `relay config show` lists all names."
    return f"{shown} is not a setting of Relay{hint}"


_SECRET = {
    "secret_key", "encryption_keys", "admin_token", "http.metrics_token", "devices.key",
    "ingest.s3_secret_key", "ingest.s3_session_token", "ingest.notification_secrets",
}  # fmt: skip
_MAY_HOLD_A_SECRET = {*_SECRET, "outbound.upstream", "database.url", "database.direct_url"}
_PASSWORD = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^&\s]*)", re.IGNORECASE)
"""As libpq takes it, among the parameters of an address or in `host=… password=…`."""


def forget_secrets() -> None:
    """Take out of this process's environment what it has read and no child of it needs.

    A filter of the operator's may start programs, too.
    """
    for variable in (*_OF_CLIENTS, *map(as_environment, _MAY_HOLD_A_SECRET)):
        os.environ.pop(variable, None)


_KINDS = {
    "bool_parsing": "it must be true or false",
    "int_parsing": "it must be a whole number",
    "float_parsing": "it must be a number",
}
"""What pydantic says in words of its own, by its name for it."""


def _sentence(error: ValidationError, written: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"] if isinstance(part, str)]
    name = ".".join(path[:2])
    shown = written.get(name, as_environment(name))
    reason = _KINDS.get(first["type"], first["msg"]).removeprefix("Value error, ").rstrip(".")
    reason = reason[:1].lower() + reason[1:] if reason.startswith("Input") else reason
    if name in _MAY_HOLD_A_SECRET:
        return f"{shown} is not usable: {reason}."  # its value may hold a secret
    return f"{shown} is {first['input']!r}, which is not usable: {reason}."


def show(settings: Settings) -> dict[str, Any]:
    """Return the settings by name, as JSON values, with every secret replaced by `***`."""
    shown: dict[str, Any] = {}
    for name in known_names():
        section, _, key = name.partition(".")
        value = getattr(settings, section)
        if key:
            value = getattr(value, key)
        if name in _SECRET and value:
            value = "***"
        elif isinstance(value, str) and "://" in value:
            value = re.sub(r"(://[^:@/]*:)[^/]*(@)", r"\1***\2", value)
        if name in _MAY_HOLD_A_SECRET and isinstance(value, str):
            value = _PASSWORD.sub(r"\1***", value)
        shown[name] = list(value) if isinstance(value, tuple) else value
    return shown


class Explained(NamedTuple):
    """A setting as a page shows it: `value` and `default` are JSON values, secrets `***`."""

    name: str
    variable: str
    value: Any
    default: Any
    source: Source
    meaning: str


def explain(settings: Settings, sources: Mapping[str, Source]) -> list[Explained]:
    """Return every setting with what is in force, where it comes from and what it is for."""
    defaults, documents = show(Settings()), documented()
    explained: list[Explained] = []
    meaning = ""
    for name, value in show(settings).items():
        if (comment := documents[name][1]) != _LIKEWISE:
            meaning = comment
        source = sources.get(name, "default")
        explained.append(
            Explained(name, as_environment(name), value, defaults[name], source, meaning)
        )
    return explained


_LIKEWISE = "likewise"


def documented() -> dict[str, tuple[str, str]]:
    """Return each setting's default as `settings.toml` has it, and the comment above it.

    The default is empty where it is none.  A comment above several is said once, `likewise` of the
    others.
    """
    found: dict[str, tuple[str, str]] = {}
    section = ""
    comment: list[str] = []
    for line in Path(__file__).with_suffix(".toml").read_text("utf-8").splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section, comment = f"{match[1]}.", []
        elif match := re.match(r"(# )?(\w+) = (.*)", line):
            default = "" if match[1] else match[3].strip('"')
            found[section + match[2]] = (default, " ".join(comment) or _LIKEWISE)
            comment = []
        elif line.startswith("#"):
            comment.extend(line[1:].split())
        else:
            comment = []
    return found


def chosen(settings: Settings) -> dict[str, Any]:
    """Return what `show` says of those settings that somebody has set."""
    return {name: value for name, value in show(settings).items() if _is_set(settings, name)}


def as_chosen(values: Mapping[str, Any], secrets: Settings) -> Settings:
    """Return the settings of which another process said `values` (by `chosen`).

    What is masked in them is taken from `secrets`.  `ConfigError` for what is no setting here.
    """
    nested: dict[str, Any] = {}
    for name, value in values.items():
        section, _, key = name.partition(".")
        if isinstance(value, str) and "***" in value:
            value = getattr(secrets, section)
            value = getattr(value, key) if key else value
        if key:
            nested.setdefault(section, {})[key] = value
        else:
            nested[section] = value
    try:
        return Settings.model_validate(nested)
    except ValidationError as error:
        raise ConfigError(_sentence(error, {})) from error


def _is_set(settings: Settings, name: str) -> bool:
    section, _, key = name.partition(".")
    if not key:
        return section in settings.model_fields_set
    return key in getattr(settings, section).model_fields_set
