"""A node: the product's own settings, resources, tree and supervisor, as `relay.app` makes them.

Left out is what belongs to a process and not to the relay: signals, the service manager, the
data directory's lock, the watch-dog's thread, and the scrape of figures that belong to one node.
"""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import trio

from simulation.kind import LETTERS_A_MONTH
from simulation.network import Network
from simulation.places import (
    ADMIN_TOKEN,
    DOMAIN,
    HTTP,
    LEASE,
    LOOPBACK,
    PUSH,
    RECEIVE,
    RESOLVER,
    RETURNS,
    SMTP,
    SUBMISSION,
    UPSTREAM,
)
from simulation.world import NODE, World

_USUAL = {"started", "ready", "draining", "stopped"}
"""Events of supervision that are not told."""


class Node:
    """A relay on a host of its own: one incarnation after the other, until it stops or dies."""

    def __init__(self, world: World, network: Network, dsn: str, host: str, data: Path) -> None:
        self.host = host
        self._world = world
        self._network = network
        self._dsn = dsn
        self._data = data
        self._incarnation = 0
        self._scope = trio.CancelScope()
        self._started = trio.Event()
        self._over = trio.Event()
        self.name = host
        """Of the incarnation that runs, or ran last."""

    async def serve(self) -> None:
        """Run one incarnation after the other, as a service manager does, until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                self._started = trio.Event()
                self._incarnation += 1
                self.name = f"{self.host}.{self._incarnation}"
                self._scope = trio.CancelScope()
                # What is left of one that was killed may take a while to end, beside the next.
                over = trio.Event()
                nursery.start_soon(self._run, self.name, self._scope, over)
                await over.wait()
                if self.name in self._world.dead:
                    await self._started.wait()
                else:
                    await trio.sleep(1.0)

    def start(self) -> None:
        """Start the next incarnation of a node that was killed."""
        self._started.set()

    async def _run(self, name: str, scope: trio.CancelScope, over: trio.Event) -> None:
        NODE.set(name)
        self._over = over
        self._world.tell("node.started")
        try:
            with scope:
                await self._live(name)
            self._world.tell("node.ended")
        except Exception as error:
            if name not in self._world.dead:
                self._world.tell("node.failed", error=type(error).__name__)
        finally:
            over.set()

    def kill(self) -> None:
        """End the incarnation; nothing that it still does reaches anybody."""
        self._world.dead.add(self.name)
        self._network.forget(self.host)
        self._network.cut([self.host])
        self._scope.cancel()
        self._over.set()

    async def _live(self, name: str) -> None:
        from actors.resources import Resources
        from actors.tree import build_tree, wire
        from relay import log, net
        from relay.app import with_log_context
        from relay.crypto import hash_token
        from relay.datadir import DataDir
        from relay.db.hosts import Hosts
        from relay.db.listen import Hub
        from relay.db.pool import Pool
        from relay.devices.noise import KeyPair
        from relay.keyring import Keyring
        from relay.settings import load
        from supervisor import Supervisor

        secret = self._world.secret
        environment = _environment(self._dsn, secret, rare=self._world.sweeps_rarely)
        if self._world.kind.budget:
            environment["RELAY_COLLECTOR__MONTHLY_BUDGET"] = str(LETTERS_A_MONTH / 1000)
            environment["RELAY_COLLECTOR__PRICE_PER_THOUSAND"] = "1"
        if self._world.kind.direct:
            environment["RELAY_OUTBOUND__UPSTREAM"] = "mx:"
            environment["RELAY_OUTBOUND__PRIVATE_MX"] = "true"  # the network has no public ones
            environment["RELAY_DNS__SERVERS"] = f'["{RESOLVER}"]'
        if self._world.kind.returns:
            environment["RELAY_OUTBOUND__BOUNCE_DOMAIN"] = RETURNS
        settings = load(environ=environment)
        data = DataDir(self._data)
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        pool = Pool(
            self._dsn,
            size=settings.database.pool_size,
            hosts=Hosts(self._data / "timeline"),
            call_timeout=settings.database.call_timeout,
        )
        supervisor = Supervisor(
            rng=self._world.rng(f"{name}/supervisor"),
            clock=self._world.wall,
            wrap=with_log_context,
            blocked_after=None,
        )

        def listen(port: int) -> Any:
            return net.listen(self.host, port)

        sockets = {port: listen(port) for port in (SMTP, SUBMISSION, HTTP, PUSH, RECEIVE)}
        parts = wire(
            settings,
            Resources(
                supervisor=supervisor,
                server=None,
                dsn=self._dsn,
                listen_dsn=self._dsn,
                pool=pool,
                hub=Hub(),
                smtp_sockets=sockets[SMTP],
                submission_sockets=sockets[SUBMISSION],
                submission_tls_sockets=(),
                lmtp_sockets=(),
                pop3_sockets=(),
                pop3_tls_sockets=(),
                http_sockets=sockets[HTTP],
                push_sockets=sockets[PUSH],
                receive_sockets=sockets[RECEIVE],
                device_key=KeyPair.from_private(secret),
                data_dir=self._data,
                admin_token_hash=hash_token(ADMIN_TOKEN),
                keyring=Keyring(data, settings.secret_key, settings.encryption_keys),
                logs=log.ring,
                page_url="http://relay.example",
            ),
        )
        # One parser, which is no process here.
        one = partial(cast("Any", parts.summariser), parsers=1)
        parts = replace(parts, summariser=one)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_narrate, self._world, supervisor)
                await supervisor.run(build_tree(parts))
                nursery.cancel_scope.cancel()
        finally:
            for each in sockets.values():
                for sock in each:
                    sock.close()


async def _narrate(world: World, supervisor: Any) -> None:
    """Tell what supervision does, but for what is usual."""
    with supervisor.subscribe(1024) as events:
        async for event in events:
            if event.kind not in _USUAL:
                error = getattr(event, "error", None)
                world.tell(
                    f"supervisor.{event.kind}",
                    actor=event.name,
                    **({"reason": event.reason} if hasattr(event, "reason") else {}),
                    **({"error": repr(error)} if error is not None else {}),
                )


def _environment(dsn: str, secret: bytes, *, rare: bool) -> dict[str, str]:
    return {
        "RELAY_DATABASE__URL": dsn,
        "RELAY_SECRET_KEY": secret.hex(),
        "RELAY_ENCRYPTION_KEYS": base64.urlsafe_b64encode(secret).decode(),
        "RELAY_SMTP__DOMAINS": DOMAIN,
        "RELAY_SMTP__CAPTURE": "off",
        "RELAY_HTTP__PUBLIC_URL": "http://relay.example",
        "RELAY_OUTBOUND__UPSTREAM": f"smtp://{LOOPBACK}:{UPSTREAM}",
        "RELAY_DEVICES__STORE": "postgres",
        "RELAY_WEBHOOKS__ALLOW_PRIVATE": "true",  # the simulated network has names, no addresses
        # Shorter than in life, so that what they bring about happens within an hour.
        "RELAY_OUTBOUND__LEASE_TIMEOUT": str(LEASE),
        "RELAY_OUTBOUND__RETRY_UNIT": "5",
        "RELAY_OUTBOUND__MAX_ATTEMPTS": "100",
        "RELAY_EXPIRY__SWEEP_EVERY": "600" if rare else "60",
    }
