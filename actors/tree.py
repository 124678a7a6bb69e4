"""The tree: who runs, in which order, and who may write to whom.

`build_tree` is data.  It starts nothing and waits for nothing, so a test can read it; the
picture in the README is this file.  Children start from the top and stop from the bottom:

    relay
    ├── postgres      the database: embedded server, or a watch on an external one
    ├── listener      the one LISTEN connection; fans wake-ups out
    ├── writer        commits accepted mail, many sessions in one transaction
    ├── summariser    parses what was accepted, in a process that may be killed
    ├── ticker        expires mailboxes the moment they are due
    ├── reaper        removes what has been expired for long, sets right what workers lost
    ├── sender        delivers what was claimed, and has the outcomes recorded
    ├── claimer       leases outbound mail that is due, as much as the sender has room for
    ├── courier       posts signed webhooks
    ├── collector     turns new tokens of accounts into letters to be sent
    ├── filter        the operator's own filter, on asyncio (only if one is configured)
    ├── keeper        keeps the device inboxes: runs their store, reaps what has expired
    ├── devices       push and receive sessions of devices
    ├── ingest        SMTP sessions
    └── control       the HTTP control plane

Letters go: ingest, control, sender → writer; listener → summariser, ticker, claimer, courier,
collector; claimer ⇄ sender; control, collector → claimer; ingest → filter.  Shared in memory: the
gates (sender, claimer, control), and the right of way that high mail has in the sender, which
whoever knows of high mail first asks for.
"""

from __future__ import annotations

import contextlib
import hmac
import random
import resource
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import trio

from actors import (
    claimer,
    collector,
    control,
    courier,
    devices,
    filter,
    ingest,
    keeper,
    listener,
    postgres,
    reaper,
    sender,
    summariser,
    ticker,
    writer,
)
from actors.messages import Accept, Consult, Due, Wake
from relay.access.keys import Keys
from relay.datadir import Keyring
from relay.db import channels
from relay.db.embedded import Embedded
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.desk import DeviceDesk
from relay.devices.intake import Intake, Sources
from relay.devices.limits import DeviceLimits
from relay.devices.noise import KeyPair
from relay.devices.postgres import PostgresStore
from relay.devices.server import DeviceServer
from relay.devices.sqlite import SqliteStore
from relay.devices.store import InboxStore
from relay.errors import ConfigError
from relay.http.serve import MAX_CONNECTIONS
from relay.lifecycle import purse
from relay.lifecycle import queue as token_queue
from relay.lifecycle.batching import Adaptive, Fixed
from relay.lifecycle.budget import Budget
from relay.lifecycle.handover import Desk
from relay.lifecycle.letters import letters_of, sender_of
from relay.log import LogRing
from relay.mailboxes.s3 import Buckets, Credentials, parse_bucket
from relay.mailboxes.store import Store
from relay.outbound.enqueue import HIGH, announce
from relay.outbound.gates import Gates
from relay.outbound.lanes import DueLane
from relay.outbound.message import MalformedMessage
from relay.outbound.queue import Queue
from relay.outbound.rates import LeaseBudget, SharedRates
from relay.outbound.right_of_way import RightOfWay
from relay.outbound.senders import Upstream, parse_upstream
from relay.peers import shares
from relay.settings import Settings
from relay.smtp.connection import client_tls
from relay.smtp.filtering import load as load_filter
from relay.smtp.limits import SmtpLimits
from relay.storage import AMPLE, Space
from relay.webhooks.post import Poster
from relay.webhooks.store import Webhooks
from supervisor import ChildSpec, Mailbox, Supervisor, SupervisorSpec

ROLES = (
    "postgres",
    "listener",
    "ingest",
    "ticker",
    "claimer",
    "sender",
    "reaper",
    "collector",
    "courier",
    "devices",
    "control",
)
"""The names that `--only` takes; the roles of systems not built yet start nothing."""

_ALWAYS = {"postgres", "listener"}
_NEEDS = {
    "ingest": {"writer", "summariser", "filter"},
    "control": {"writer", "summariser"},
    "claimer": {"sender", "writer", "summariser"},  # the writer for what goes to the loop
    "sender": {"claimer", "writer", "summariser"},
    "devices": {"keeper"},
}

_INGEST_DRAIN = 30.0
"""Seconds that a message which is arriving may take to finish after SIGTERM."""

_OTHER_FILES = 96
"""Files that are open besides connections: listeners, logs, stores, pipes, libraries."""

_OUTBOUND_DRAIN = 30.0
"""Seconds that a delivery which has begun may take to finish after SIGTERM."""


@dataclass(frozen=True)
class Resources:
    """What the actors share; made by `relay.app`, which also closes it."""

    supervisor: Supervisor
    server: Embedded | None
    dsn: str
    listen_dsn: str
    pool: Pool
    hub: Hub
    smtp_sockets: tuple[socket.socket, ...]
    http_sockets: tuple[socket.socket, ...]
    push_sockets: tuple[socket.socket, ...]
    receive_sockets: tuple[socket.socket, ...]
    device_key: KeyPair | None  # where device sessions are served
    data_dir: Path
    admin_token_hash: bytes
    keyring: Keyring
    logs: LogRing
    page_url: str
    """Where this relay's pages are reached from a letter; empty: nobody knows."""
    space: Space = AMPLE
    """Of the data directory's disk."""


def build_tree(
    settings: Settings, resources: Resources, *, only: frozenset[str] | None = None
) -> SupervisorSpec:
    """Return the tree of this process: all of it, or the roles in `only` and what they need."""
    pool = resources.pool
    store = Store(pool, settings.smtp.domains, [sender_of(settings)])
    filter_class = load_filter(settings.smtp.filter) if settings.smtp.filter else None

    writer_box: Mailbox[Accept] = Mailbox("writer", capacity=4096, on_dead=writer.dead)
    filter_box: Mailbox[Consult] = Mailbox("filter", capacity=1024, attempts=1, on_dead=filter.dead)
    summariser_box: Mailbox[Wake] = Mailbox("summariser", capacity=16)
    ticker_box: Mailbox[Wake] = Mailbox("ticker", capacity=64)
    claimer_box: Mailbox[Any] = Mailbox("claimer", capacity=4096)
    sender_box: Mailbox[Any] = Mailbox("sender", capacity=64)
    courier_box: Mailbox[Wake] = Mailbox("courier", capacity=16)
    collector_box: Mailbox[Wake] = Mailbox("collector", capacity=16)

    outbound = settings.outbound
    queue = Queue(
        pool, uuid4(), lease_timeout=outbound.lease_timeout, max_attempts=outbound.max_attempts
    )
    upstream = _upstream(outbound.upstream)
    gates = Gates(
        outbound.concurrency,
        outbound.retry_unit,
        random.Random(),  # noqa: S311 - jitter
        cap=outbound.domain_connections,
    )
    right_of_way = RightOfWay()
    wake_outbound = _due(claimer_box, right_of_way) if only is None or "claimer" in only else None

    connections = _connections(settings, resources)
    inboxes = _inboxes(settings, resources)
    sources = Sources(settings.devices.source_rate)
    intake = Intake(inboxes, sources=sources, space=resources.space)
    server = None
    if resources.device_key is not None:
        limits = DeviceLimits(
            max_push_sessions=connections["push"], max_receive_sessions=connections["receive"]
        )
        server = DeviceServer(resources.device_key, inboxes, intake, limits)
    desk = None
    if server is not None or settings.devices.store == "postgres":
        desk = DeviceDesk(inboxes, intake, server)  # a file of our own that nobody reads is no use

    actors = [
        ChildSpec(
            "postgres",
            partial(
                postgres.run,
                server=resources.server,
                dsn=resources.listen_dsn,
                pool=pool,
                prepare=store.register_domains,
            ),
            start_timeout=900.0,  # initdb, crash recovery and migrations take what they take
            drain_timeout=30.0,
            stop_timeout=10.0,
            fatal=(ConfigError,),
        ),
        ChildSpec(
            "listener",
            partial(
                listener.run,
                dsn=resources.listen_dsn,
                hosts=pool.hosts,
                hub=resources.hub,
                routes={
                    channels.MESSAGES: _wake(summariser_box),
                    channels.EXPIRY: _wake(ticker_box),
                    channels.OUTBOUND: _wake_outbound(claimer_box, right_of_way),
                    channels.WEBHOOKS: _wake(courier_box),
                    token_queue.CHANNEL: _wake(collector_box),
                },
            ),
            start_timeout=900.0,  # an external database may be away
        ),
        ChildSpec(
            "writer",
            partial(writer.run, pool=pool, stored=_nudge(summariser_box)),
            mailbox=writer_box,
            liveness=90.0,
        ),
        ChildSpec(
            "summariser",
            partial(summariser.run, pool=pool),
            mailbox=summariser_box,
            liveness=120.0,
        ),
        ChildSpec(
            "ticker",
            partial(ticker.run, pool=pool, sweep_every=settings.expiry.sweep_every),
            mailbox=ticker_box,
            liveness=2 * settings.expiry.sweep_every + 60.0,
        ),
        ChildSpec(
            "reaper",
            partial(
                reaper.run,
                pool=pool,
                queue=queue,
                retention=settings.expiry.retention,
                outbound_retention=outbound.retention,
            ),
        ),
        # The claimer after the sender: stopped first, it hands over nothing more.
        ChildSpec(
            "sender",
            partial(
                sender.run,
                pool=pool,
                queue=queue,
                claimer=claimer_box,
                writer=writer_box,
                gates=gates,
                vault=resources.keyring.vault,
                settings=sender.Settings(
                    upstream,
                    settings.smtp.domains,
                    # The oldest key: correlations outlast a rotation for as long as it is kept.
                    redact_key=hmac.digest(
                        resources.keyring.signing[-1], b"relay redact", "sha256"
                    ),
                    context=client_tls(outbound.ca_file or None),
                    private_upstreams=outbound.private_upstreams,
                    concurrency=outbound.concurrency,
                    route_connections=outbound.route_connections,
                    retry_unit=outbound.retry_unit,
                ),
                space=resources.space,
                right_of_way=right_of_way,
            ),
            mailbox=sender_box,
            drain_timeout=_OUTBOUND_DRAIN,
            stop_timeout=sender.GRACE + 2.0,
        ),
        ChildSpec(
            "claimer",
            partial(
                claimer.run,
                queue=queue,
                sender=sender_box,
                gates=gates,
                rates=SharedRates(
                    pool,
                    route=outbound.route_rate,
                    domain=outbound.domain_rate,
                    budget=_budget_for_all(settings, pool),
                ),
                upstream=upstream.url,
                announce=partial(announce, pool),
            ),
            mailbox=claimer_box,
            liveness=120.0,
        ),
        ChildSpec(
            "courier",
            partial(
                courier.run,
                webhooks=Webhooks(pool),
                poster=Poster(
                    allow_private=settings.webhooks.allow_private,
                    timeout=settings.webhooks.timeout,
                    context=client_tls(outbound.ca_file or None),
                ),
                keyring=resources.keyring,
                retry_unit=outbound.retry_unit,
                max_attempts=outbound.max_attempts,
                concurrency=settings.webhooks.concurrency,
            ),
            mailbox=courier_box,
            drain_timeout=settings.webhooks.timeout + 5.0,  # posts under way end
            liveness=60.0,
        ),
        ChildSpec(
            "keeper",
            partial(
                keeper.run,
                store=inboxes,
                reap_every=settings.devices.reap_every,
                shared=pool if settings.devices.store == "postgres" else None,
            ),
            start_timeout=900.0,  # an external database may be away
            liveness=120.0,
            fatal=(ConfigError,),
        ),
        ChildSpec(
            "ingest",
            partial(
                ingest.run,
                sockets=resources.smtp_sockets,
                pool=pool,
                writer=writer_box,
                limits=_smtp_limits(settings, connections["smtp"]),
                domains=settings.smtp.domains,
                filter_=filter_box if filter_class else None,
                filter_hooks=filter_class.hooks if filter_class else frozenset(),
                space=resources.space,
            ),
            drain_timeout=_INGEST_DRAIN,
            liveness=30.0,
        ),
        ChildSpec(
            "control",
            partial(
                control.run,
                sockets=resources.http_sockets,
                pool=pool,
                store=store,
                keys=Keys(pool),
                hub=resources.hub,
                writer=writer_box,
                supervision=resources.supervisor,
                logs=resources.logs,
                admin_token_hash=resources.admin_token_hash,
                keyring=resources.keyring,
                node=f"{socket.gethostname()}:{resources.data_dir}",
                wake_outbound=wake_outbound,
                right_of_way=right_of_way,
                gates=gates,
                private_webhooks=settings.webhooks.allow_private,
                private_upstreams=outbound.private_upstreams,
                public_url=settings.http.link_base,
                other_urls=settings.http.public_url[1:],
                return_url=settings.lifecycle.return_url,
                connections=connections["http"],
                anonymous_rate=settings.http.anonymous_rate,
                trusted_proxies=settings.http.trusted_proxies,
                budget=_budget(settings),
                sns_topics=settings.ingest.sns_topics,
                buckets=_buckets(settings),
                max_message_bytes=settings.smtp.max_message_bytes,
                devices=desk,
                space=resources.space,
            ),
            liveness=30.0,
        ),
    ]
    if only is None or "collector" in only:
        actors.insert(
            _place(actors, "ingest"),
            ChildSpec(
                "collector",
                partial(
                    collector.run,
                    desk=_desk(settings, resources),
                    batching=partial(
                        Adaptive if settings.collector.adaptive else Fixed,
                        settings.collector.batch_limit,
                        settings.collector.batch_timeout,
                    ),
                    keyring=resources.keyring,
                    wake_outbound=wake_outbound,
                    space=resources.space,
                ),
                mailbox=collector_box,
                liveness=60.0,
            ),
        )
    if filter_class is not None:
        actors.insert(
            _place(actors, "ingest"),
            ChildSpec(
                "filter",
                partial(
                    filter.run,
                    filter_=filter_class,
                    hostname=settings.smtp.domains[0],
                    max_message_bytes=settings.smtp.max_message_bytes,
                    timeout=settings.smtp.filter_timeout,
                ),
                mailbox=filter_box,
                fatal=(ConfigError,),
            ),
        )
    if server is not None:
        actors.insert(
            _place(actors, "keeper") + 1,
            ChildSpec(
                "devices",
                partial(
                    devices.run,
                    server=server,
                    push_sockets=resources.push_sockets,
                    receive_sockets=resources.receive_sockets,
                ),
                drain_timeout=server.limits.drain + 5.0,
                liveness=30.0,
            ),
        )
    wanted = _with_needs(only)
    if wanted is not None and "control" in wanted and desk is not None:
        wanted |= {"keeper"}  # blobs come by HTTP too
    return SupervisorSpec(
        "relay",
        tuple(spec for spec in actors if wanted is None or spec.name in wanted),
        max_restarts=30,
        within=60.0,
    )


def _inboxes(settings: Settings, resources: Resources) -> InboxStore:
    """Return the store of the device inboxes; nothing is opened."""
    ttl, max_total = settings.devices.ttl, settings.devices.max_bytes or None
    if settings.devices.store == "postgres":
        return PostgresStore(resources.pool, resources.hub, ttl=ttl, max_total=max_total)
    path, space = resources.data_dir / "devices.db", resources.space
    return SqliteStore(path, ttl=ttl, max_total=max_total, space=space)


def _place(actors: list[ChildSpec], name: str) -> int:
    return next(place for place, spec in enumerate(actors) if spec.name == name)


def _with_needs(only: frozenset[str] | None) -> frozenset[str] | None:
    if only is None:
        return None
    for name in sorted(only):
        if name not in ROLES:
            raise ConfigError(
                f"--only: there is no role {name!r}; the roles are {', '.join(ROLES)}."
            )
    needed = set(only) | _ALWAYS
    for name in only:
        needed |= _NEEDS.get(name, set())
    return frozenset(needed)


def _connections(settings: Settings, resources: Resources) -> dict[str, int]:
    """Return how many connections each port may have, by the files that may be open here."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = (
        _OTHER_FILES
        + settings.database.pool_size
        + settings.outbound.concurrency
        + settings.webhooks.concurrency
    )
    wanted = {
        "http": (resources.http_sockets, MAX_CONNECTIONS),
        "smtp": (resources.smtp_sockets, settings.smtp.max_connections),
        "push": (resources.push_sockets, DeviceLimits.max_push_sessions),
        "receive": (resources.receive_sockets, DeviceLimits.max_receive_sessions),
    }
    # Where another process serves a port, none of its connections are open here.
    served = {port: most for port, (bound, most) in wanted.items() if bound}
    given = shares(open_files, needed, served)
    return {port: given.get(port, 1) for port in wanted}


def _smtp_limits(settings: Settings, connections: int) -> SmtpLimits:
    return SmtpLimits(
        max_message_bytes=settings.smtp.max_message_bytes,
        max_connections=connections,
        max_connections_per_peer=settings.smtp.max_connections_per_peer,
        max_recipients=settings.smtp.max_recipients,
        filter_timeout=settings.smtp.filter_timeout,
    )


def _desk(settings: Settings, resources: Resources) -> Desk:
    """What the collector hands over with."""
    collector = settings.collector
    if not resources.page_url:
        raise ConfigError(
            "RELAY_HTTP__PUBLIC_URL is needed: the collector writes links to pages that another "
            "relay serves, and RELAY_HTTP__BIND says port 0."
        )
    return Desk(
        resources.pool,
        letters_of(settings, resources.page_url),
        collector.batch_limit,
        collector.batch_timeout,
        _budget(settings) if collector.budget_covers == "letters" else None,
    )


def _buckets(settings: Settings) -> Buckets | None:
    """Where SES may put mail, if the settings name a bucket."""
    ingest = settings.ingest
    if not ingest.s3_buckets:
        return None
    return Buckets(
        dict(map(parse_bucket, ingest.s3_buckets)),
        Credentials(ingest.s3_access_key, ingest.s3_secret_key, ingest.s3_session_token),
        ingest.s3_endpoint,
    )


def _budget(settings: Settings) -> Budget | None:
    monthly, price = settings.collector.monthly_budget, settings.collector.price_per_thousand
    return None if monthly is None or price is None else Budget(monthly, price)


def _budget_for_all(settings: Settings, pool: Pool) -> LeaseBudget | None:
    budget = _budget(settings)
    if budget is None or settings.collector.budget_covers == "letters":
        return None
    return partial(purse.lease, pool, budget)


def _upstream(text: str) -> Upstream:
    try:
        return parse_upstream(text)
    except MalformedMessage as error:
        raise ConfigError(f"RELAY_OUTBOUND__UPSTREAM is not usable: {error}.") from error


def _due(
    claimer_box: Mailbox[Any], right_of_way: RightOfWay
) -> Callable[[Collection[DueLane]], None]:
    """Return what tells the claimer, and through it other nodes, of mail that was queued."""

    def tell(due_lanes: Collection[DueLane]) -> None:
        now = datetime.now(UTC)  # for mail of another day; a clock that is off costs a moment
        if any(not due_lane.priority and due_lane.due_at <= now for due_lane in due_lanes):
            right_of_way.expect(trio.current_time())
        _put(claimer_box, Due(tuple(due_lanes), announce=True))

    return tell


def _wake_outbound(claimer_box: Mailbox[Any], right_of_way: RightOfWay) -> Callable[[str], None]:
    """Return the route of what other nodes, and users' transactions, say of the queue."""

    def route(payload: str) -> None:
        if payload == HIGH:
            right_of_way.expect(trio.current_time())
        _put(claimer_box, Wake(reason=payload))

    return route


def _put(mailbox: Mailbox[Any], message: object) -> None:
    """Put a hint in.

    A full box holds a reason to look already; an actor that has ended finds it by itself.
    """
    with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
        mailbox.send_nowait(message)


def _nudge(mailbox: Mailbox[Wake]) -> Callable[[], None]:
    """Return what wakes the owner of a mailbox; a full one has wake-ups enough."""

    def nudge() -> None:
        _put(mailbox, Wake())

    return nudge


def _wake(mailbox: Mailbox[Wake]) -> Callable[[str], None]:
    """Return a route that turns a payload (an instant, a word, or nothing) into a `Wake`."""

    def route(payload: str) -> None:
        try:
            due_at = float(payload) if payload else None
        except ValueError:
            due_at = None  # whatever was notified, looking does no harm
        mailbox.send_nowait(Wake(due_at, payload))

    return route
