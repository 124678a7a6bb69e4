"""The tree: who runs, in which order, who may write to whom, and who goes down with whom.

`wire` makes the parts of every actor, `build_tree` places them.  Neither starts anything or waits
for anything, so a test can read them.  Children start from the top and stop from the bottom; this
picture, the README's and what `build_tree` returns are the same (tests/actors/test_tree.py):

    relay
    ├── core              the database and its news; the listener restarts with the database
    │   ├── postgres      the database: embedded server, or a watch on an external one
    │   ├── listener      the one LISTEN connection; fans wake-ups out
    │   └── recorder      writes down once a minute what moved, for charts of the last day
    ├── mail              what arrives
    │   ├── writer        commits accepted mail, many sessions in one transaction
    │   ├── summariser    parses what was accepted, in a process that may be killed
    │   ├── ticker        expires mailboxes the moment they are due
    │   └── reaper        removes what has been expired for long, sets right what workers lost
    ├── outbound          what is sent
    │   ├── tls_reporter  tells domains how TLS with their servers went (only if it has an address)
    │   ├── sender        delivers what was claimed, and has the outcomes recorded
    │   ├── claimer       leases outbound mail that is due, as much as the sender has room for
    │   ├── returns       reads bounces and complaints (only if there is a bounce domain)
    │   ├── notifier      tells submitters what became of their mail
    │   └── webhooks      posts signed webhooks
    ├── lifecycle         mail about accounts
    │   └── collector     turns account tokens into letters, in batches, within a budget
    ├── devices-store     what waits for devices
    │   └── device_store  runs the store of the device inboxes, removes what nobody fetched
    ├── processes         where SMTP sessions are, if RELAY_SMTP__PROCESSES is above 1
    │   └── ingest-1      a process with sessions and a writer; ingest-2 and so on are others
    └── edge              who calls; drains first
        ├── filter        the operator's aiosmtpd handler, on asyncio (only if one is configured)
        ├── ingest        SMTP sessions
        ├── lmtp          takes mail from a server in front, by a Unix socket (only if it has one)
        ├── submission    takes mail that leaves from programs that sign in
        ├── pop3          lets mail readers fetch what came (only if it has an address)
        ├── devices       push and receive sessions of devices
        └── control       the HTTP control plane, and the operator's page

Messages go, besides what an operator may say to an actor (`hears`, beside it in `build_tree`):

    from                     message                         to
    -----------------------  ------------------------------  -----------------------------------
    ingest, lmtp, control,   Accept                          writer
    sender
    ingest, lmtp             Consult                         filter
    writer                   OnTheWay, Wake                  summariser
    listener                 Wake                            summariser, ticker, claimer,
                                                             returns, notifier, webhooks,
                                                             collector
    control, collector,      Due                             claimer
    submission, tls_reporter,
    notifier
    sender                   Credit, Due                     claimer
    claimer                  Deliver, Claiming, NothingHigh  sender

Shared in memory, besides the database's pool and the disk's free space: the gates (sender, claimer,
control); the receivers of direct delivery, and what they are given (sender, claimer, control); the
right of way of high mail (sender; told by the listener, control, submission and collector); how
many of those who send mail wait (summariser; told by ingest and by the writer's mailbox); the hub
of the database's news (listener, control, devices, sender); who signs what leaves (sender,
control); what was counted of TLS (sender, tls_reporter); the store of the device inboxes and the
way into it (device_store, devices, control); the front of the SMTP processes (ingest, ingest-1 and
so on); the faults on demand (ingest, lmtp; set by control); which mail is captured, and how many
mailboxes of it there are (writer, ingest, lmtp, sender); the certificate of the ports (ingest,
ingest-1 and so on, submission, pop3); the checks of passwords, for a guesser has so many on both
ports together (submission, pop3); the keyring (sender, webhooks, collector, control); the API keys,
for what is revoked counts at once (control, submission); the resolver of the DNS, which outlives a
restart of control.

Fails: each group by itself.  An actor that fails is started again after a pause that grows (0.5 s,
doubled each time up to 30 s, at random below that).  More than 5 failures in 30 s: its group gives
up, stops what it has, and is started again after a pause of its own (at most 1 s, doubled up to
15 s for core, mail, processes and edge, up to 120 s for outbound and lifecycle, at random below
that) while the others go on.  To the failures that processes may have, each adds one.  The group
devices-store never gives up and holds up nobody's start: a file that cannot be opened or read is
tried again, every 30 s at last, for as long as it takes.  The root
gives up, and the process ends with 70 for its service manager to start it afresh, after more than
60 such failures of groups in two hours: when mail fails for ever after about a quarter of an hour,
when outbound or lifecycle do after about an hour.  `/readyz` is 503 as long as any actor is down,
and names group, actor and last error.  A `ConfigError` of the database or the filter ends the
process with 78.
"""

from __future__ import annotations

import contextlib
import hmac
import math
import resource
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import trio

from actors import (
    claimer,
    collector,
    control,
    device_store,
    devices,
    filter,
    ingest,
    ingest_process,
    listener,
    lmtp,
    notifier,
    pop3,
    postgres,
    reaper,
    recorder,
    returns,
    sender,
    submission,
    summariser,
    ticker,
    tls_reporter,
    webhooks,
    writer,
)
from actors.commands import current_name
from actors.control_deps import control_deps
from actors.messages import Accept, Consult, Due, Report, SweepNow, Wake
from actors.resources import Resources
from actors.serving import SMTP_DRAIN
from relay import configured
from relay.access.keys import Keys
from relay.access.password_checks import PasswordChecks
from relay.chance import new_rng, utc_now, uuid4
from relay.db import channels
from relay.db.pool import Pool
from relay.devices.inbox import DeviceInbox
from relay.devices.intake import Intake, SourceRates
from relay.devices.limits import DeviceLimits
from relay.devices.postgres import PostgresStore
from relay.devices.server import DeviceServer
from relay.devices.sqlite import SqliteStore
from relay.devices.store import InboxStore
from relay.dns.questions import Answer, Question
from relay.dns.turns import AT_ONCE, MOST_LATE
from relay.errors import ConfigError
from relay.history import History
from relay.http.probes.links import Links
from relay.http.serve import MAX_CONNECTIONS
from relay.lifecycle import budget_store
from relay.lifecycle.batching import Adaptive, Fixed
from relay.lifecycle.budget import Budget
from relay.lifecycle.letters import letters_of, sender_of
from relay.lifecycle.token_mailer import TokenMailer
from relay.load import Senders
from relay.mailboxes.capture import Capture
from relay.mailboxes.store import Store
from relay.net import own_address
from relay.outbound.active_queue.dispatch import most_aside
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.bounces.notified import Notified
from relay.outbound.bounces.returned import Returned
from relay.outbound.composing.message import Address
from relay.outbound.delivery.workers import ReportField
from relay.outbound.mx.dane import DaneFirst, DanePolicies
from relay.outbound.mx.sts import FETCH, StsPolicies, web_pki
from relay.outbound.mx.sts_store import StsStore
from relay.outbound.mx.tls_results import TlsResults
from relay.outbound.pacing.gates import Gates
from relay.outbound.pacing.shared_rates import LeaseBudget, SharedRates
from relay.outbound.queue.enqueue import HIGH, announce
from relay.outbound.queue.lanes import DueLane
from relay.outbound.queue.store import Queue
from relay.outbound.reporting.notices import Notices
from relay.outbound.reporting.tls_reports import TlsReports
from relay.outbound.routing.senders import DIRECT
from relay.outbound.routing.sources import parse as parse_sources
from relay.outbound.shaping.destinations import why_held
from relay.outbound.shaping.traffic import Traffic
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.signer import Signer
from relay.outbound.submission.sending import WakeOutbound
from relay.outbound.suppression.suppressions import Suppressions
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.pop3.limits import Pop3Limits
from relay.ports.peers import shares
from relay.ports.proxy import networks
from relay.returns.paths import ReturnPaths, Tokens, derived
from relay.settings import CONNECTIONS_A_PROCESS, Settings, captures, parse_dns_server
from relay.smtp.channel import Setup
from relay.smtp.chaos import DOMAIN as CHAOS_DOMAIN
from relay.smtp.chaos import Chaos
from relay.smtp.connection import client_tls
from relay.smtp.filtering import load as load_filter
from relay.smtp.front import Front
from relay.smtp.limits import SmtpLimits, part_of
from relay.smtp.racing import AT_ONCE as RACED
from relay.smtp.refused import RefusedRecipients
from relay.webhooks.post import Poster
from relay.webhooks.store import Webhooks
from supervisor import (
    Backoff,
    ChildSpec,
    Context,
    Mailbox,
    Strategy,
    SupervisorSpec,
)

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver

ROLES = (
    "postgres",
    "listener",
    "ingest",
    "lmtp",
    "submission",
    "pop3",
    "ticker",
    "claimer",
    "sender",
    "reaper",
    "collector",
    "returns",
    "notifier",
    "webhooks",
    "devices",
    "control",
)
"""The actors that `--only` may name; the others come with those that need them."""

_ALL = frozenset(ROLES) | {
    "recorder",
    "tls_reporter",
    "writer",
    "summariser",
    "device_store",
    "filter",
}
_ALWAYS = {"postgres", "listener", "recorder"}
_NEEDS = {
    "ingest": {"writer", "summariser", "filter"},
    "lmtp": {"writer", "summariser", "filter"},
    "control": {"writer", "summariser"},
    # The writer for what goes to the loop.
    "claimer": {"sender", "tls_reporter", "writer", "summariser"},
    "sender": {"claimer", "tls_reporter", "writer", "summariser"},
    "devices": {"device_store"},
}

_OTHER_FILES = 96
"""Files that are open besides connections: listeners, logs, stores, pipes, libraries."""

_LINK_TIMEOUT = 5.0
"""Seconds that a link of a message may take to answer."""

_PROCESS_STOP = 6.0
"""Seconds that a process may take to end once it is killed."""

_OUTBOUND_DRAIN = 30.0
"""Seconds that a delivery which has begun may take to finish after SIGTERM."""


Run = Callable[[Context], Awaitable[None]]
"""An actor, with everything that it needs bound to it."""

Row = ChildSpec | SupervisorSpec | None
"""A line of the picture, or None where it is not drawn here."""


@dataclass(frozen=True)
class Mailboxes:
    """The mailboxes that others than an operator write to."""

    writer: Mailbox[Accept] = field(default_factory=writer.mailbox)
    filter: Mailbox[Consult] = field(
        default_factory=lambda: Mailbox("filter", capacity=1024, attempts=1, on_dead=filter.dead)
    )
    summariser: Mailbox[Any] = field(default_factory=lambda: Mailbox("summariser", capacity=16))
    ticker: Mailbox[Any] = field(default_factory=lambda: Mailbox("ticker", capacity=64))
    claimer: Mailbox[Any] = field(default_factory=lambda: Mailbox("claimer", capacity=4096))
    sender: Mailbox[Any] = field(default_factory=lambda: Mailbox("sender", capacity=64))
    returns: Mailbox[Any] = field(default_factory=lambda: Mailbox("returns", capacity=16))
    notifier: Mailbox[Any] = field(default_factory=lambda: Mailbox("notifier", capacity=16))
    webhooks: Mailbox[Any] = field(default_factory=lambda: Mailbox("webhooks", capacity=16))
    collector: Mailbox[Any] = field(default_factory=lambda: Mailbox("collector", capacity=16))


@dataclass(frozen=True)
class Parts:
    """What the tree is made of: each actor, ready to be placed.  Times are in seconds.

    `wanted` are the actors that shall run here; what is None cannot (no filter is configured, no
    collector is wanted, no device sessions are served).
    """

    wanted: frozenset[str]
    mailboxes: Mailboxes
    postgres: Run
    listener: Run
    recorder: Run
    writer: Run
    summariser: Run
    ticker: Run
    reaper: Run
    tls_reporter: Run | None
    sender: Run
    claimer: Run
    returns: Run | None
    notifier: Run
    webhooks: Run
    collector: Run | None
    device_store: Run
    filter: Run | None
    processes: tuple[Run, ...]
    """One for each process that SMTP sessions are in; none: they are in this one."""
    ingest: Run
    lmtp: Run | None
    submission: Run | None
    pop3: Run | None
    devices: Run | None
    control: Run
    sweep_every: float
    """Between two rounds of the ticker."""
    post_timeout: float
    """Of one webhook."""
    devices_drain: float


@dataclass(frozen=True)
class Pace:
    """How often actors and groups may fail, and how soon they are started again.

    `restarts` failures of a group's actors `within` seconds are allowed; the next one, and it gives
    up.  `root_restarts` of groups are, `root_within` seconds.
    """

    actor: Backoff = field(default_factory=Backoff)
    restarts: float = 5
    within: float = 30.0
    urgent: Backoff = field(default_factory=lambda: Backoff(base=1.0, cap=15.0))
    """Of groups without which nothing can be accepted."""
    patient: Backoff = field(default_factory=lambda: Backoff(base=1.0, cap=120.0))
    """Of groups whose work waits in the database meanwhile."""
    root_restarts: float = 60
    root_within: float = 7200.0


def build_tree(parts: Parts, pace: Pace = Pace()) -> SupervisorSpec:
    """Place the parts: the tree of this process, without the actors that shall not run here."""
    boxes = parts.mailboxes

    def actor(name: str, run: Run | None, role: str | None = None, **limits: Any) -> Row:
        if run is None or (role or name) not in parts.wanted:
            return None
        return ChildSpec(name, run, backoff=pace.actor, **limits)

    def group(name: str, backoff: Backoff, *rows: Row, **limits: Any) -> Row:
        limits = {"max_restarts": pace.restarts, "within": pace.within} | limits
        children = tuple(row for row in rows if row is not None)
        return SupervisorSpec(name, children, backoff=backoff, **limits) if children else None

    rows = (
        group(
            "core",
            pace.urgent,
            actor(
                "postgres",
                parts.postgres,
                start_timeout=900.0,  # initdb, crash recovery and migrations take what they take
                drain_timeout=30.0,
                stop_timeout=10.0,
                fatal=(ConfigError,),
                pausable=False,
            ),
            actor(
                "listener",
                parts.listener,
                start_timeout=900.0,  # an external database may be away
                pausable=False,
            ),
            actor("recorder", parts.recorder),
            strategy=Strategy.REST_FOR_ONE,
        ),
        group(
            "mail",
            pace.urgent,
            actor("writer", parts.writer, mailbox=boxes.writer, liveness=writer.LIVENESS),
            actor(
                "summariser",
                parts.summariser,
                hears=(SweepNow,),
                mailbox=boxes.summariser,
                liveness=120.0,
            ),
            actor(
                "ticker",
                parts.ticker,
                hears=(SweepNow,),
                mailbox=boxes.ticker,
                liveness=2 * parts.sweep_every + 60.0,
            ),
            actor("reaper", parts.reaper, hears=(SweepNow,)),
        ),
        group(
            "outbound",
            pace.patient,
            # Before the sender: stopped after it, it stores what that counted last.
            actor("tls_reporter", parts.tls_reporter, hears=(SweepNow,)),
            # The claimer after the sender: stopped first, it hands over nothing more.
            actor(
                "sender",
                parts.sender,
                mailbox=boxes.sender,
                drain_timeout=_OUTBOUND_DRAIN,
                stop_timeout=sender.GRACE + 2.0,
            ),
            actor(
                "claimer",
                parts.claimer,
                hears=(SweepNow,),
                mailbox=boxes.claimer,
                liveness=120.0,
            ),
            actor(
                "returns",
                parts.returns,
                hears=(SweepNow,),
                mailbox=boxes.returns,
                liveness=120.0,
            ),
            actor(
                "notifier",
                parts.notifier,
                hears=(SweepNow,),
                mailbox=boxes.notifier,
                liveness=120.0,
            ),
            actor(
                "webhooks",
                parts.webhooks,
                hears=(SweepNow,),
                mailbox=boxes.webhooks,
                drain_timeout=parts.post_timeout + 5.0,  # posts under way end
            ),
        ),
        group(
            "lifecycle",
            pace.patient,
            actor(
                "collector",
                parts.collector,
                hears=(SweepNow,),
                mailbox=boxes.collector,
                liveness=60.0,
            ),
        ),
        group(
            "devices-store",
            pace.patient,
            actor(
                "device_store",
                parts.device_store,
                hears=(Report,),
                start_timeout=900.0,  # an old file is converted; an external database may be away
                liveness=120.0,
            ),
            max_restarts=math.inf,
            awaited=False,
        ),
        group(
            "processes",
            pace.urgent,
            *(
                actor(
                    f"ingest-{number}",
                    run,
                    role="ingest",
                    hears=(Report,),
                    drain_timeout=SMTP_DRAIN + 5.0,
                    stop_timeout=_PROCESS_STOP,
                )
                for number, run in enumerate(parts.processes, 1)
            ),
            # So that all may fail once for a reason that they share.
            max_restarts=pace.restarts + len(parts.processes),
        ),
        group(
            "edge",
            pace.urgent,
            actor(
                "filter",
                parts.filter,
                mailbox=boxes.filter,
                fatal=(ConfigError,),
            ),
            actor(
                "ingest",
                parts.ingest,
                hears=(Report,),
                drain_timeout=SMTP_DRAIN,
            ),
            actor(
                "lmtp",
                parts.lmtp,
                hears=(Report,),
                drain_timeout=SMTP_DRAIN,
            ),
            actor(
                "submission",
                parts.submission,
                hears=(Report,),
                drain_timeout=SMTP_DRAIN,
            ),
            actor(
                "pop3",
                parts.pop3,
                hears=(Report,),
                drain_timeout=pop3.POP3_DRAIN,
            ),
            actor(
                "devices",
                parts.devices,
                hears=(Report,),
                drain_timeout=parts.devices_drain + 5.0,
            ),
            actor("control", parts.control, hears=(Report,), pausable=False),
        ),
    )
    return SupervisorSpec(
        "relay",
        tuple(row for row in rows if row is not None),
        max_restarts=pace.root_restarts,
        within=pace.root_within,
    )


def wire(settings: Settings, resources: Resources, *, only: frozenset[str] | None = None) -> Parts:
    """Make the parts of every actor, and of the roles in `only` what they need besides."""
    pool = resources.pool
    store = Store(pool, settings.smtp.domains, [sender_of(settings)])
    keys = Keys(pool)
    filter_class = load_filter(settings.smtp.filter) if settings.smtp.filter else None
    boxes = Mailboxes()
    capture = _capture(settings, resources)
    chaos = Chaos() if settings.smtp.chaos else None
    refused = RefusedRecipients(trio.current_time)
    wanted = _with_needs(only)

    outbound = settings.outbound
    upstream = configured.upstream(settings)
    queue = Queue(
        pool,
        uuid4(),
        lease_timeout=outbound.lease_timeout,
        max_attempts=outbound.max_attempts,
        direct=upstream.url == DIRECT,
        expired=Suppressions(pool).count_expired,
    )
    gates = Gates(
        outbound.concurrency,
        outbound.retry_unit,
        new_rng(),
        cap=outbound.domain_connections,
    )
    right_of_way = RightOfWay()
    traffic = Traffic(
        lambda: resources.shaping.rules,
        parse_sources(outbound.sources),
        lambda: utc_now().date(),
    )
    history = History(pool)
    resolver = cache(partial(_resolver, settings))
    dkim_keys = DkimKeys(pool, resources.keyring.vault)
    signer = Signer(dkim_keys, resources.keyring.vault)
    return_paths = _return_paths(settings, resources)
    tokens = Tokens(lambda: derived(resources.keyring.signing))
    unsubscribing = Unsubscribing(
        settings.http.link_base if outbound.unsubscribe else "",
        lambda: resources.keyring.signing,
    )
    # The oldest key: correlations outlast a rotation for as long as it is kept.
    redact_key = hmac.digest(resources.keyring.signing[-1], b"relay redact", "sha256")
    returned = Returned(pool, redact_key)
    wake_outbound = _local_wake(boxes.claimer, right_of_way) if "claimer" in wanted else None

    senders = Senders(partial(_unanswered, boxes.writer))
    posting = cache(partial(client_tls, outbound.ca_file or None))  # of those who speak HTTPS
    reports_from = configured.reports_from(settings)
    tls_results = None if reports_from is None else TlsResults()
    dane = DanePolicies(resolver, port=outbound.mx_port, results=tls_results)
    tls_policies = DaneFirst(
        dane,
        _sts_policies(settings, pool, resolver, redact_key, tls_results),
    )
    connections = _connections(settings, resources)
    smtp_limits = _smtp_limits(settings, connections["smtp"])
    password_checks = PasswordChecks()
    processes = settings.smtp_processes
    proxies = networks(settings.smtp.trusted_proxies)
    front = Front(smtp_limits, processes, proxies) if processes > 1 and "ingest" in wanted else None
    inboxes = _inboxes(settings, resources)
    sources = SourceRates(settings.devices.source_rate)
    intake = Intake(inboxes, sources=sources, space=resources.space)
    device_server = None
    if resources.device_key is not None:
        limits = DeviceLimits(
            max_push_sessions=connections["push"], max_receive_sessions=connections["receive"]
        )
        device_server = DeviceServer(resources.device_key, inboxes, intake, limits)
    device_inbox = None
    if device_server is not None or settings.devices.store == "postgres":
        # A file of our own that nobody reads is no use.
        device_inbox = DeviceInbox(inboxes, intake, device_server)

    if "control" in wanted and device_inbox is not None:
        wanted |= {"device_store"}  # blobs come by HTTP too

    return Parts(
        wanted=wanted,
        mailboxes=boxes,
        postgres=partial(
            postgres.run,
            server=resources.server,
            dsn=resources.listen_dsn,
            pool=pool,
            prepare=store.register_domains,
        ),
        listener=partial(
            listener.run,
            dsn=resources.listen_dsn,
            hosts=pool.hosts,
            hub=resources.hub,
            routes={
                channels.MESSAGES: _wake(boxes.summariser),
                channels.EXPIRY: _wake(boxes.ticker),
                channels.OUTBOUND: _outbound_route(boxes.claimer, right_of_way),
                channels.RETURNS: _wake(boxes.returns),
                channels.NOTICES: _wake(boxes.notifier),
                channels.WEBHOOKS: _wake(boxes.webhooks),
                channels.TOKENS: _wake(boxes.collector),
            },
        ),
        recorder=partial(recorder.run, history=history),
        writer=partial(
            writer.run,
            pool=pool,
            wake_summariser=_nudge(boxes.summariser),
            parse_ahead=partial(_put, boxes.summariser),
            awaited=partial(resources.hub.was_awaited, channels.SUMMARIES),
            capture=capture,
        ),
        summariser=partial(
            summariser.run,
            pool=pool,
            others_lack=(lambda: False) if front is None else front.lacking,
            senders=senders,
            awaited=partial(resources.hub.is_awaited, channels.SUMMARIES),
        ),
        ticker=partial(ticker.run, pool=pool, sweep_every=settings.expiry.sweep_every),
        reaper=partial(
            reaper.run,
            pool=pool,
            queue=queue,
            retention=settings.expiry.retention,
            outbound_retention=outbound.retention,
        ),
        tls_reporter=_tls_reporter(
            settings, pool, resolver, tls_results, reports_from, wake_outbound
        ),
        sender=partial(
            sender.run,
            pool=pool,
            queue=queue,
            claimer=boxes.claimer,
            writer=boxes.writer,
            gates=gates,
            vault=resources.keyring.vault,
            settings=sender.DeliverySettings(
                upstream,
                settings.smtp.domains,
                redact_key=redact_key,
                context=client_tls(outbound.ca_file or None),
                private_upstreams=outbound.private_upstreams,
                concurrency=outbound.concurrency,
                route_connections=outbound.route_connections,
                retry_unit=outbound.retry_unit,
                mx_lifetime=outbound.mx_lifetime,
                private_mx=outbound.private_mx,
                mx_port=outbound.mx_port,
                resolver=resolver,
                policy=tls_policies,
                dane=dane,
                results=tls_results,
                report_field=_report_field(outbound.report_field, tokens),
            ),
            space=resources.space,
            right_of_way=right_of_way,
            capture=capture,
            signer=signer,
            hub=resources.hub,
            return_paths=return_paths,
            traffic=traffic,
            unsubscribing=unsubscribing,
        ),
        claimer=partial(
            claimer.run,
            queue=queue,
            sender=boxes.sender,
            gates=gates,
            rates=SharedRates(
                pool,
                route=outbound.route_rate,
                domain=outbound.domain_rate,
                budget=_budget_for_all(settings, pool),
                named=traffic,
            ),
            traffic=traffic,
            upstream=upstream.url,
            announce=partial(announce, pool),
        ),
        returns=None
        if return_paths is None
        else partial(returns.run, returned=returned, paths=return_paths),
        notifier=partial(
            notifier.run,
            pool=pool,
            notices=Notices(
                pool,
                settings.smtp.domains[0],
                delayed_after=settings.submission.delayed_after,
                mx_lifetime=outbound.mx_lifetime,
                direct=queue.direct,
                held=lambda owner, domain: why_held(
                    gates, traffic, trio.current_time(), owner.int, domain
                ),
            ),
            wake_outbound=wake_outbound,
            space=resources.space,
        ),
        webhooks=partial(
            webhooks.run,
            webhooks=Webhooks(pool),
            poster=Poster(
                allow_private=settings.webhooks.allow_private,
                timeout=settings.webhooks.timeout,
                context=posting,
            ),
            keyring=resources.keyring,
            retry_unit=outbound.retry_unit,
            max_attempts=outbound.max_attempts,
            concurrency=settings.webhooks.concurrency,
        ),
        collector=partial(
            collector.run,
            mailer=_mailer(settings, resources),
            batching=partial(
                Adaptive if settings.collector.adaptive else Fixed,
                settings.collector.batch_limit,
                settings.collector.batch_timeout,
            ),
            keyring=resources.keyring,
            wake_outbound=wake_outbound,
            space=resources.space,
        )
        if "collector" in wanted
        else None,
        device_store=partial(
            device_store.run,
            store=inboxes,
            reap_every=settings.devices.reap_every,
            shared=pool if settings.devices.store == "postgres" else None,
        ),
        filter=partial(
            filter.run,
            filter_=filter_class,
            hostname=settings.smtp.domains[0],
            max_message_bytes=settings.smtp.max_message_bytes,
            timeout=settings.smtp.filter_timeout,
        )
        if filter_class is not None
        else None,
        processes=()
        if front is None
        else tuple(
            partial(
                ingest_process.run,
                front=front,
                setup=_process_setup(settings, resources, smtp_limits, capture, place, processes),
                hosts=pool.hosts,
                space=resources.space,
                wake_summariser=_nudge(boxes.summariser),
                certificate=resources.certificate,
                return_keys=lambda: derived(resources.keyring.signing),
                note_refused=refused.note,
            )
            for place in range(processes)
        ),
        ingest=partial(ingest.hand_on, sockets=resources.smtp_sockets, front=front)
        if front is not None
        else partial(
            ingest.run,
            sockets=resources.smtp_sockets,
            pool=pool,
            writer=boxes.writer,
            limits=smtp_limits,
            domains=settings.smtp.domains,
            capture=capture,
            chaos=chaos,
            filter_=boxes.filter if filter_class else None,
            filter_hooks=filter_class.hooks if filter_class else frozenset(),
            space=resources.space,
            certificate=resources.certificate,
            proxies=proxies,
            senders=senders,
            return_paths=return_paths,
            note_refused=refused.note,
        ),
        lmtp=partial(
            lmtp.run,
            sockets=resources.lmtp_sockets,
            pool=pool,
            writer=boxes.writer,
            limits=_lmtp_limits(settings, connections["lmtp"]),
            domains=settings.smtp.domains,
            capture=capture,
            filter_=boxes.filter if filter_class else None,
            filter_hooks=filter_class.hooks if filter_class else frozenset(),
            space=resources.space,
            return_paths=return_paths,
            note_refused=refused.note,
        )
        if settings.smtp.lmtp
        else None,
        submission=partial(
            submission.run,
            sockets=resources.submission_sockets,
            tls_sockets=resources.submission_tls_sockets,
            certificate=resources.certificate,
            proxies=proxies,
            pool=pool,
            keys=keys,
            names=store.names,
            admin_token_hash=resources.admin_token_hash,
            right_of_way=right_of_way,
            wake_outbound=wake_outbound,
            limits=_smtp_limits(settings, connections["submission"]),
            password_checks=password_checks,
            hostname=settings.smtp.domains[0],
            space=resources.space,
            reports=settings.submission.reports,
            lifetime=settings.submission.lifetime,
        )
        if settings.submission.bind or settings.submission.tls_bind
        else None,
        pop3=partial(
            pop3.run,
            sockets=resources.pop3_sockets,
            tls_sockets=resources.pop3_tls_sockets,
            pool=pool,
            store=store,
            admin_token_hash=resources.admin_token_hash,
            limits=Pop3Limits(
                max_connections=connections["pop3"],
                max_connections_per_peer=settings.pop3.max_connections_per_peer,
                idle_timeout=settings.pop3.idle_timeout,
            ),
            certificate=resources.certificate,
            proxies=proxies,
            password_checks=password_checks,
        )
        if settings.pop3.bind or settings.pop3.tls_bind
        else None,
        devices=partial(
            devices.run,
            server=device_server,
            push_sockets=resources.push_sockets,
            receive_sockets=resources.receive_sockets,
        )
        if device_server is not None
        else None,
        control=partial(
            control.run,
            sockets=resources.http_sockets,
            pool=pool,
            make_deps=control_deps(
                settings,
                resources,
                store=store,
                keys=keys,
                writer=boxes.writer,
                wake_outbound=wake_outbound,
                right_of_way=right_of_way,
                gates=gates,
                devices=device_inbox,
                budget=_budget(settings),
                chaos=chaos,
                refused=refused,
                connections=connections["http"],
                resolver=resolver,
                dkim_keys=dkim_keys,
                signer=signer,
                history=history,
                traffic=traffic,
                links=Links(Poster(timeout=_LINK_TIMEOUT, context=posting)),
                upstream=upstream.url,
                notified=Notified(returned, Suppressions(pool), tokens, return_paths),
                unsubscribing=unsubscribing,
                posting=posting,
                capture=capture,
            ),
            connections=connections["http"],
        ),
        sweep_every=settings.expiry.sweep_every,
        post_timeout=settings.webhooks.timeout,
        devices_drain=0.0 if device_server is None else device_server.limits.drain,
    )


def _inboxes(settings: Settings, resources: Resources) -> InboxStore:
    """Return the store of the device inboxes; nothing is opened."""
    ttl, max_total = settings.devices.ttl, settings.devices.max_bytes or None
    if settings.devices.store == "postgres":
        return PostgresStore(resources.pool, resources.hub, ttl=ttl, max_total=max_total)
    path, space = resources.data_dir / "devices.db", resources.space
    return SqliteStore(path, ttl=ttl, max_total=max_total, space=space)


def _with_needs(only: frozenset[str] | None) -> frozenset[str]:
    """Return the actors that shall run here: all of them, or `only` and what these need."""
    if only is None:
        return _ALL
    roles = set(map(current_name, only))
    for name in sorted(roles):
        if name not in ROLES:
            raise ConfigError(
                f"--only: there is no role {name!r}; the roles are {', '.join(ROLES)}."
            )
    return frozenset(roles | _ALWAYS).union(*(_NEEDS.get(name, set()) for name in roles))


def _connections(settings: Settings, resources: Resources) -> dict[str, int]:
    """Return how many connections each port may have, by the files that may be open here."""
    open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Many dead sites and name servers at once are rare: where files are few, as under a limit of
    # 1,024, what they may take is not kept from the ports for it.
    outgoing = (
        RACED * (settings.outbound.concurrency + most_aside(settings.outbound.concurrency))
        + AT_ONCE
        + MOST_LATE
    )
    needed = (
        _OTHER_FILES
        + settings.database.pool_size
        + max(min(outgoing, open_files // 4), settings.outbound.concurrency)
        + settings.webhooks.concurrency
    )
    wanted = {
        "http": (resources.http_sockets, MAX_CONNECTIONS),
        "smtp": (resources.smtp_sockets, settings.smtp.max_connections),
        "submission": (
            (*resources.submission_sockets, *resources.submission_tls_sockets),
            settings.smtp.max_connections,
        ),
        "lmtp": (resources.lmtp_sockets, settings.smtp.max_connections),
        "pop3": (
            (*resources.pop3_sockets, *resources.pop3_tls_sockets),
            settings.pop3.max_connections,
        ),
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


def _lmtp_limits(settings: Settings, connections: int) -> SmtpLimits:
    """Those of a server that passes on what others send: it guesses nothing, and is one peer."""
    limits = _smtp_limits(settings, connections)
    return replace(limits, max_connections_per_peer=connections, max_errors=10_000, miss_delay=0.0)


def _capture(settings: Settings, resources: Resources) -> Capture | None:
    """What mail for others' domains is kept by, if it is."""
    smtp = settings.smtp
    if not captures(smtp, (own_address(sock)[0] for sock in resources.smtp_sockets)):
        return None
    own = smtp.domains if smtp.chaos else (*smtp.domains, CHAOS_DOMAIN)
    if settings.outbound.bounce_domain:
        own = (*own, settings.outbound.bounce_domain)
    return Capture.beside(own, smtp.capture_ttl, smtp.capture_mailboxes)


def _process_setup(
    settings: Settings,
    resources: Resources,
    limits: SmtpLimits,
    capture: Capture | None,
    place: int,
    places: int,
) -> Setup:
    """What one of several SMTP processes runs with."""
    return Setup(
        place=place,
        level=settings.log.level,
        dsn=resources.dsn,
        connections=CONNECTIONS_A_PROCESS,
        prepare=settings.database.prepare,
        call_timeout=settings.database.call_timeout,
        domains=settings.smtp.domains,
        limits=part_of(limits, places),
        capture=None if capture is None else (capture.ttl, capture.most),
        certificate=settings.smtp.certificate,
        returns=(
            settings.outbound.bounce_domain,
            tuple(key.hex() for key in derived(resources.keyring.signing)),
        )
        if settings.outbound.bounce_domain
        else None,
    )


def _return_paths(settings: Settings, resources: Resources) -> ReturnPaths | None:
    """The return paths of what leaves, if there is a domain for them."""
    domain = settings.outbound.bounce_domain
    if not domain:
        return None
    return ReturnPaths(domain, lambda: derived(resources.keyring.signing))


def _report_field(name: str, tokens: Tokens) -> ReportField | None:
    """What makes the field of this name for each message that leaves, if it has one."""
    return (lambda message: f"{name}: {tokens.token_of(message)}\r\n".encode()) if name else None


def _resolver(settings: Settings) -> Resolver:
    # Here, for a start of the relay is not to wait for what it may never need.
    from relay.dns.resolver import Resolver

    return Resolver(tuple(map(parse_dns_server, settings.dns.servers)))


def _sts_policies(
    settings: Settings,
    pool: Pool,
    resolver: Callable[[], Resolver],
    redact_key: bytes,
    results: TlsResults | None,
) -> StsPolicies:
    """What domains ask of who delivers to them directly; its memory outlives the sender."""
    authorities = cache(partial(web_pki, settings.outbound.ca_file or None))

    async def resolve(host: str, port: int, **_: Any) -> list[Any]:
        return await resolver().getaddrinfo(host, port)

    poster = Poster(
        allow_private=settings.outbound.private_mx,
        timeout=FETCH,
        context=authorities,
        resolve=resolve,
    )
    return StsPolicies(StsStore(pool), resolver, poster.get, authorities, redact_key, results)


def _tls_reporter(
    settings: Settings,
    pool: Pool,
    resolver: Callable[[], Resolver],
    results: TlsResults | None,
    sender: Address | None,
    wake_outbound: WakeOutbound | None,
) -> Run | None:
    """Who makes reports of TLS, if anybody is to."""
    if results is None or sender is None:
        return None

    async def ask(question: Question) -> Answer:
        return await resolver().ask(question)

    # Whoever has a domain says where to: not into this network, whatever `private_mx` lets mail do.
    poster = Poster(context=partial(client_tls, settings.outbound.ca_file or None))
    reports = TlsReports(pool, results, ask, poster.post, sender=sender)
    return partial(tls_reporter.run, pool=pool, reports=reports, wake_outbound=wake_outbound)


def _mailer(settings: Settings, resources: Resources) -> TokenMailer:
    """What the collector mails tokens with."""
    collector = settings.collector
    if not resources.page_url:
        raise ConfigError(
            "RELAY_HTTP__PUBLIC_URL is needed: the collector writes links to pages that another "
            "relay serves, and RELAY_HTTP__BIND says port 0."
        )
    return TokenMailer(
        resources.pool,
        letters_of(settings, resources.page_url),
        collector.batch_limit,
        collector.batch_timeout,
        _budget(settings) if collector.budget_covers == "letters" else None,
    )


def _budget(settings: Settings) -> Budget | None:
    monthly, price = settings.collector.monthly_budget, settings.collector.price_per_thousand
    return None if monthly is None or price is None else Budget(monthly, price)


def _budget_for_all(settings: Settings, pool: Pool) -> LeaseBudget | None:
    budget = _budget(settings)
    if budget is None or settings.collector.budget_covers == "letters":
        return None
    return partial(budget_store.lease, pool, budget)


def _local_wake(claimer_box: Mailbox[Any], right_of_way: RightOfWay) -> WakeOutbound:
    """Return what tells the claimer, and through it other nodes, of mail that was queued."""

    def tell(due_lanes: Collection[DueLane]) -> None:
        now = utc_now()  # for mail of another day; a clock that is off costs a moment
        if any(not due_lane.priority and due_lane.due_at <= now for due_lane in due_lanes):
            right_of_way.expect(trio.current_time())
        _put(claimer_box, Due(tuple(due_lanes), announce=True))

    return tell


def _outbound_route(claimer_box: Mailbox[Any], right_of_way: RightOfWay) -> Callable[[str], None]:
    """Return the route of what other nodes, and users' transactions, say of the queue."""

    def route(payload: str) -> None:
        if payload == HIGH:
            right_of_way.expect(trio.current_time())
        _put(claimer_box, Wake(reason=payload))

    return route


def _put(mailbox: Mailbox[Any], message: object) -> bool:
    """Put a hint in; return whether there was room.

    A full box holds a reason to look already; an actor that has ended finds it by itself.
    """
    with contextlib.suppress(trio.WouldBlock, trio.ClosedResourceError, trio.BrokenResourceError):
        mailbox.send_nowait(message)
        return True
    return False


def _unanswered(box: Mailbox[Any]) -> int:
    """How many messages wait for what an actor makes of them."""
    found = box.statistics()
    return found.depth + found.in_hand


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
