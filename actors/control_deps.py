"""What the calls of the control plane use, made of settings and of what the process shares.

A new dependency of a call is a field of `relay.http.deps.Deps` and a line here.  All of it is made
anew for each start of the control actor, so that nothing which one remembers (page sessions, keys
that it knows) outlives what it heard of them.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import trio

from actors.accepting import Acceptor
from actors.commands import Commands
from actors.messages import Accept
from actors.resources import Resources
from relay import __version__
from relay.access.keys import Keys
from relay.crypto import hash_token
from relay.db.connection import NO_HOST
from relay.db.hosts import Hosts, shown
from relay.db.pool import Pool
from relay.devices.inbox import DeviceInbox
from relay.devices.postgres import PostgresStore
from relay.errors import DatabaseUnavailable
from relay.history import History
from relay.http.credentials.page_sessions import PageSessions
from relay.http.deps import Deps, Limits, MailPorts, MakeDeps, ReadyCheck, Serving
from relay.http.probes.domain_checks import DomainChecks
from relay.http.probes.fetch import fetch, fetch_object
from relay.http.probes.links import Links
from relay.lifecycle.accounts import Accounts
from relay.lifecycle.budget import Budget
from relay.lifecycle.consumption import Consumption
from relay.lifecycle.report import report
from relay.mailboxes.all_messages import AllMessages
from relay.mailboxes.arrivals import Arrivals
from relay.mailboxes.capture import Capture
from relay.mailboxes.mails import Mails
from relay.mailboxes.messages import Messages
from relay.mailboxes.misaddressed import Misaddressed
from relay.mailboxes.s3 import Buckets, Credentials, parse_bucket
from relay.mailboxes.store import Store
from relay.mailboxes.summaries import unparsed
from relay.mailboxes.verdicts import Judge
from relay.mailboxes.visibility import Credential
from relay.net import gethostname, own_address
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.admin import QueueAdmin
from relay.outbound.bounces.notified import Notified
from relay.outbound.pacing.gates import Gates
from relay.outbound.pacing.held_back import Standing
from relay.outbound.routing.senders import LOOP, Senders
from relay.outbound.shaping.destinations import destinations as told
from relay.outbound.shaping.traffic import Traffic
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.signer import Signer
from relay.outbound.submission.sending import Enqueuer, WakeOutbound
from relay.outbound.suppression.suppressions import Suppressions
from relay.outbound.suppression.unsubscribing import Unsubscribing
from relay.ports.connections import endpoint
from relay.ports.proxy import networks
from relay.settings import Settings, explain, others_reach
from relay.smtp.chaos import Chaos
from relay.smtp.refused import RefusedRecipients
from relay.webhooks.post import Poster
from relay.webhooks.store import Webhooks
from supervisor import Mailbox

if TYPE_CHECKING:
    from relay.dns.resolver import Resolver  # loaded when somebody asks


_LOOK_TIMEOUT = 1.5  # s; for PostgreSQL to say that it is there


def control_deps(
    settings: Settings,
    resources: Resources,
    *,
    store: Store,
    keys: Keys,
    writer: Mailbox[Accept],
    wake_outbound: WakeOutbound | None,
    right_of_way: RightOfWay,
    gates: Gates,
    devices: DeviceInbox | None,
    budget: Budget | None,
    chaos: Chaos | None,
    refused: RefusedRecipients,
    connections: int,
    resolver: Callable[[], Resolver],
    dkim_keys: DkimKeys,
    signer: Signer,
    history: History,
    traffic: Traffic,
    links: Links | None = None,
    upstream: str = LOOP,
    notified: Notified | None = None,
    unsubscribing: Unsubscribing | None = None,
    posting: Callable[[], ssl.SSLContext] = ssl.create_default_context,
    capture: Capture | None = None,
) -> MakeDeps:
    """Return what makes the `Deps` of each start of the control actor.

    `keys`: those of this process; `writer`: where mail that comes by HTTP goes; `wake_outbound`:
    tells this process's claimer of what was queued, None where none runs; `right_of_way`: what high
    mail has over other in this process's sender; `devices`: this node's device inbox, if any;
    `budget`: the collectors', to be shown; `chaos`: the faults of SMTP sessions; `refused`: whom
    they turned down; `connections`: how many may be open; `history`: what the recorder writes down;
    `traffic`: the receivers of direct
    delivery; `resolver`: gives what asks the DNS, `links` the web about links of messages;
    `upstream`: the relay's own, without credentials; `notified`: takes what upstreams report of
    mail; `unsubscribing`: the links of bulk mail, None: none is made, and all are read; `posting`:
    whom HTTPS trusts; `capture`: what mail to others' domains is kept by.
    """
    pool, keyring = resources.pool, resources.keyring
    buckets = _buckets(settings)
    acceptor = Acceptor(writer, pool, capture)
    unsubscribing = unsubscribing or Unsubscribing("", lambda: keyring.signing)
    senders = Senders(pool, keyring.vault, private_upstreams=settings.outbound.private_upstreams)
    judge = Judge(resolver, receiver=store.domains[0])

    def destinations(owner: UUID | None, domain: str | None) -> Sequence[Standing]:
        whose = None if owner is None else owner.int
        return told(gates, traffic, trio.current_time(), whose, domain)

    async def takes(address: str) -> bool:
        return await store.find(address, Credential(administrator=True)) is not None

    def make(serving: Serving) -> Deps:
        all_messages = AllMessages(pool)
        return Deps(
            store=store,
            messages=Messages(pool),
            arrivals=Arrivals(pool),
            all_messages=all_messages,
            mails=Mails(pool, all_messages),
            refused=refused,
            misaddressed=Misaddressed(pool),
            keys=keys,
            sessions=PageSessions(
                pool,
                keys,
                admin_token_hash=resources.admin_token_hash,
                # From one start to the next.
                node=f"{gethostname()}:{resources.data_dir}",
            ),
            hub=resources.hub,
            accept=acceptor.accept,
            keep=acceptor.keep,
            extract_attachment=serving.extract_attachment,
            examine=serving.examine,
            judge=judge.judge,
            supervision=Commands(resources.supervisor),
            logs=resources.logs,
            admin_token_hash=resources.admin_token_hash,
            draining=serving.draining,
            enqueue=Enqueuer(pool, right_of_way).enqueue,
            queue_admin=QueueAdmin(
                pool, receivers_of=traffic.receivers_of, unsubscribing=unsubscribing
            ),
            senders=senders,
            suppressions=Suppressions(pool),
            unsubscribing=unsubscribing,
            dkim_keys=dkim_keys,
            signer=signer,
            domain_checks=DomainChecks(
                resolver,
                dkim_keys,
                senders,
                lambda resolve: Poster(timeout=10.0, context=posting, resolve=resolve),
                upstream=upstream,
                received=store.domains,
                bounce_domain=settings.outbound.bounce_domain,
                takes=takes,
                served=others_reach(
                    settings.smtp, (own_address(sock)[0] for sock in resources.smtp_sockets)
                ),
                captures=capture is not None,
                sources=traffic.sources,
            ),
            keyring=keyring,
            webhooks=Webhooks(pool),
            accounts=Accounts(pool),
            history=history,
            unparsed=partial(unparsed, pool),
            consumption=Consumption(pool, lambda: keyring.signing),
            collector_report=partial(report, pool, budget),
            wake_outbound=wake_outbound or serving.announce,
            destinations=destinations,
            limits_of=lambda domains: traffic.limits_of(domains, trio.current_time()),
            private_webhooks=settings.webhooks.allow_private,
            devices=devices,
            ready_checks=_ready_checks(pool, devices),
            held_up=partial(_held_up, pool.hosts),
            space=resources.space,
            public_url=settings.http.link_base,
            other_urls=settings.http.public_url[1:],
            return_url=settings.lifecycle.return_url,
            metrics_token_hash=(
                hash_token(settings.http.metrics_token) if settings.http.metrics_token else None
            ),
            anonymous_rate=settings.http.anonymous_rate,
            trusted_proxies=networks(settings.http.trusted_proxies),
            sns_topics=settings.ingest.sns_topics,
            notification_secrets=settings.ingest.notification_secrets,
            report_field=settings.outbound.report_field,
            buckets=buckets,
            fetch_object=fetch_object,
            notified=notified,
            upstream=upstream,
            release_to=settings.outbound.release_to,
            mail_ports=MailPorts(
                smtp=_reached(resources.smtp_sockets),
                lmtp=settings.smtp.lmtp if resources.lmtp_sockets else None,
                submission=_reached(resources.submission_sockets),
                submission_tls=_reached(resources.submission_tls_sockets),
                pop3=_reached(resources.pop3_sockets),
                pop3_tls=_reached(resources.pop3_tls_sockets),
                starttls=resources.certificate is not None,
            ),
            captures=capture is not None,
            max_message_bytes=settings.smtp.max_message_bytes,
            links=links,
            fetch=fetch,
            chaos=chaos,
            settings=partial(explain, settings, resources.origins),
            version=__version__,
            # The last quarter of the connections is for calls that are answered and gone.
            limits=Limits(streams=max(1, connections * 3 // 4)),
        )

    return make


def _buckets(settings: Settings) -> Buckets | None:
    """Return the buckets that SES may put mail into, if the settings name any."""
    ingest = settings.ingest
    if not ingest.s3_buckets:
        return None
    return Buckets(
        dict(map(parse_bucket, ingest.s3_buckets)),
        Credentials(ingest.s3_access_key, ingest.s3_secret_key, ingest.s3_session_token),
        ingest.s3_endpoint,
    )


def _reached(sockets: Sequence[socket.socket]) -> str | None:
    """Where a port is, or None where it is not served here."""
    return endpoint(sockets[0]) if sockets else None


def _ready_checks(pool: Pool, devices: DeviceInbox | None) -> dict[str, ReadyCheck]:
    """Return the looks at the stores.  Of one that is in PostgreSQL nothing is said twice."""

    async def database() -> str | None:
        why = ""
        with trio.move_on_after(_LOOK_TIMEOUT):
            try:
                await pool.ping(_LOOK_TIMEOUT)
            except DatabaseUnavailable as error:
                why = str(error).partition(NO_HOST)[2]
            else:
                return _held_up(pool.hosts)
        if (waits := _held_up(pool.hosts)) is not None:
            return waits  # on every connection, perhaps
        if not why and pool.hosts.in_use is not None:
            why = shown(pool.hosts.in_use)
        return f"PostgreSQL does not answer ({why})" if why else "PostgreSQL does not answer"

    async def shared() -> str | None:
        return await database() or (None if devices is None else await devices.check())

    if devices is None:
        return {"PostgreSQL": database}
    if isinstance(devices.store, PostgresStore):
        return {"PostgreSQL": shared}
    return {"PostgreSQL": database, "devices-store: the device store": devices.check}


def _held_up(hosts: Hosts) -> str | None:
    """Say that no commit ends, where that is known."""
    if hosts.held_up is None:
        return None
    return f"PostgreSQL's commits wait for a standby, and {hosts.held_up}"
