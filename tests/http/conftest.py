"""A whole control plane: real PostgreSQL, listener, writer and control under a supervisor, and
httpx on a real socket."""

import contextlib
import functools
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
import trio
from cryptography.fernet import Fernet

from actors import control, listener, writer
from actors.control_deps import control_deps
from actors.messages import Accept, Report
from actors.resources import Resources
from relay.access.keys import Keys
from relay.crypto import hash_token, new_admin_token
from relay.datadir import DataDir
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.inbox import DeviceInbox
from relay.dns.resolver import Resolver, Server
from relay.history import History
from relay.http.deps import Deps, Limits, Serving
from relay.http.problems.types import MEDIA_TYPE
from relay.http.serve import MAX_CONNECTIONS
from relay.ids import new_id
from relay.keyring import Keyring
from relay.log import LogRing
from relay.mailboxes.capture import Capture
from relay.mailboxes.store import Store
from relay.mailboxes.summary import summarise
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.pacing.gates import Gates
from relay.outbound.shaping.traffic import Traffic
from relay.outbound.signing.dkim_keys import DkimKeys
from relay.outbound.signing.signer import Signer
from relay.outbound.submission.sending import WakeOutbound
from relay.settings import load
from relay.smtp.chaos import Chaos
from relay.smtp.refused import RefusedRecipients
from supervisor import ChildSpec, Mailbox, Ready, Supervisor, SupervisorSpec
from tests.db.cluster import Cluster, binaries
from tests.eventually import eventually
from tests.http.refusals import is_known

LETTER = b"From: Ada <ada@example.org>\r\nTo: you\r\nSubject: Hello\r\n\r\nYour code is 482913.\r\n"


async def no_fetch(url: str) -> bytes:
    """Fetch nothing: a test that needs it gives its own."""
    raise AssertionError(f"{url} was fetched")


@dataclass
class House:
    """A running control plane and ways into it."""

    pool: Pool
    port: int
    supervisor: Supervisor
    admin_token: str
    ring: LogRing
    hub: Hub
    client: httpx.AsyncClient
    keyring: Keyring
    chaos: Chaos
    history: History
    fetch: list[Callable[[str], Awaitable[bytes]]] = field(default_factory=lambda: [no_fetch])
    refused: RefusedRecipients = field(default_factory=lambda: RefusedRecipients(trio.current_time))

    def __post_init__(self) -> None:
        self.store = Store(self.pool, ["relay.localhost"])
        self.keys = Keys(self.pool)

    @property
    def admin(self) -> dict[str, str]:
        """The administrator's header."""
        return {"Authorization": f"Bearer {self.admin_token}"}

    async def mailbox(self, **values: Any) -> tuple[str, dict[str, str]]:
        """Make an anonymous mailbox; its address and the header that opens it."""
        made = (await self.client.post("/api/v1/mailboxes", json=values)).json()
        return made["address"], {"X-Session-Token": made["session_token"]}

    async def key(self, *scopes: str) -> dict[str, str]:
        """Make an API key; its header."""
        _, token = await self.keys.create("someone", scopes or ("read",), "pro")
        return {"Authorization": f"Bearer {token}"}

    async def deliver(
        self,
        address: str,
        raw: bytes = LETTER,
        sender: str = "bounce@example.org",
        *,
        parse: bool = True,
    ) -> UUID:
        """Store a message as the writer does, and its summary as the summariser does."""
        wanted = new_id()
        await self.pool.execute(
            "INSERT INTO relay.messages (id, mailbox_id, reverse_path, recipient, raw_email)"
            " SELECT %s, id, %s, address, %s"
            " FROM relay.mailboxes WHERE address = %s",
            (wanted, sender, raw, address),
        )
        if parse:
            await self.parse(wanted)
        return wanted

    async def parse(self, wanted: UUID) -> None:
        """Store a message's summary and announce it, in one transaction."""
        async with self.pool.transaction() as conn:
            cursor = await conn.execute(
                "SELECT mailbox_id, raw_email FROM relay.messages WHERE id = %s", (wanted,)
            )
            row = await cursor.fetchone()
            assert row is not None
            found = summarise(bytes(row[1]))
            await conn.execute(
                "INSERT INTO relay.summaries (message_id, mailbox_id, from_address, subject,"
                " has_attachments, body_text, body_html, headers, attachments, otp, links,"
                " from_name) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)",
                (
                    wanted, row[0], found.from_address, found.subject, found.has_attachments,
                    found.body_text, found.body_html, json.dumps(found.headers),
                    json.dumps(found.attachments), found.otp, json.dumps(found.links),
                    found.from_name,
                ),
            )  # fmt: skip
            await conn.execute(
                "SELECT pg_notify('relay_summaries', concat(id, ',=', owner_id))"
                " FROM relay.mailboxes WHERE id = %s",
                (row[0],),
            )

    async def expire(self, address: str, seconds: float = 0.0) -> None:
        """Let a mailbox end in so many seconds."""
        await self.pool.execute(
            "UPDATE relay.mailboxes SET expires_at = clock_timestamp() + make_interval(secs => %s)"
            " WHERE address = %s",
            (seconds, address),
        )

    async def waiting(self, channel: str = "relay_summaries", count: int = 1) -> None:
        """Return once so many subscriptions stand on a channel of the hub."""
        # The hub tells nobody who joins it.
        await eventually(
            lambda: self.hub.statistics().get(channel, 0),
            f"{count} wait on {channel}",
            until=lambda waiting: waiting == count,
        )


async def unread(
    peers: contextlib.AsyncExitStack, port: int, path: str, credential: dict[str, str]
) -> bytes:
    """Ask for something, and read no more than the beginning of the answer."""
    lines = [f"GET {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in credential.items()]
    peer = trio.SocketStream(trio.socket.socket())
    await peers.enter_async_context(peer)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await peer.socket.connect(("127.0.0.1", port))
    await peer.send_all("\r\n".join([*lines, "", ""]).encode())
    return bytes(await peer.receive_some(12))


NO_DNS = ("127.0.0.1", 9)
"""A server that is none: a test that needs one gives its own."""

SMALL = Limits(streams_per_mailbox=3, body_timeout=1.0, keep_alive_every=0.2, commit_timeout=10.0)


@contextlib.asynccontextmanager
async def open_house(
    database_url: str,
    pool: Pool,
    limits: Limits = SMALL,
    keyring: Keyring | None = None,
    *,
    node: str = "",
    devices: DeviceInbox | None = None,
    wake_outbound: WakeOutbound | None = None,
    dns: Server = NO_DNS,
    capture: Capture | None = None,
    **changes: Any,
) -> AsyncIterator[House]:
    """Run a control plane for the block, as the tree makes it; `changes` are of its `Deps`."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    supervisor, hub, ring = Supervisor(), Hub(), LogRing()
    history = History(pool)
    chaos = Chaos()
    refused = RefusedRecipients(trio.current_time)
    token = new_admin_token()
    # Keys as the settings give them, so that no directory is touched.
    keyring = keyring or Keyring(DataDir(Path("none")), "5a" * 32, Fernet.generate_key().decode())
    messages: Mailbox[Accept] = Mailbox("writer", on_dead=writer.dead)
    fetchers: list[Callable[[str], Awaitable[bytes]]] = [no_fetch]

    async def fetch(url: str) -> bytes:
        return await fetchers[0](url)

    resources = Resources(
        supervisor=supervisor,
        server=None,
        dsn=database_url,
        listen_dsn=database_url,
        pool=pool,
        hub=hub,
        smtp_sockets=(),
        lmtp_sockets=(),
        submission_sockets=(),
        submission_tls_sockets=(),
        pop3_sockets=(),
        pop3_tls_sockets=(),
        http_sockets=(listening,),
        push_sockets=(),
        receive_sockets=(),
        device_key=None,
        data_dir=Path(node),
        admin_token_hash=hash_token(token),
        keyring=keyring,
        logs=ring,
        page_url="",
    )
    dkim_keys = DkimKeys(pool, keyring.vault)
    made = control_deps(
        load(environ={}),
        resources,
        store=Store(pool, ["relay.localhost"]),
        keys=Keys(pool),
        writer=messages,
        wake_outbound=wake_outbound,
        right_of_way=RightOfWay(),
        gates=Gates(8, 60.0, random.Random(1)),
        devices=devices,
        budget=None,
        chaos=chaos,
        refused=refused,
        connections=MAX_CONNECTIONS,
        resolver=functools.cache(lambda: Resolver([dns])),
        dkim_keys=dkim_keys,
        traffic=Traffic(),
        signer=Signer(dkim_keys, keyring.vault),
        history=history,
        capture=capture,
    )

    def make_deps(serving: Serving) -> Deps:
        own: dict[str, Any] = {"limits": limits, "fetch": fetch, "anonymous_rate": 0.0} | changes
        return replace(made(serving), **own)

    tree = SupervisorSpec(
        "relay",
        (
            ChildSpec(
                "listener",
                functools.partial(listener.run, dsn=database_url, hub=hub, routes={}),
            ),
            ChildSpec(
                "writer",
                functools.partial(writer.run, pool=pool, capture=capture),
                mailbox=messages,
            ),
            ChildSpec(
                "control",
                functools.partial(
                    control.run, sockets=(listening,), pool=pool, make_deps=make_deps
                ),
                hears=(Report,),
            ),
        ),
    )
    with listening:
        async with trio.open_nursery() as nursery:
            with supervisor.subscribe() as events:
                nursery.start_soon(supervisor.run, tree)
                with trio.fail_after(20):
                    async for event in events:
                        if isinstance(event, Ready) and event.name == "control":
                            break
            unknown: list[str] = []

            async def listen(answer: httpx.Response) -> None:
                if answer.headers.get("Content-Type") == MEDIA_TYPE:
                    await answer.aread()
                    said = answer.json()
                    sentences = (said["detail"], *said.get("errors", []))
                    unknown.extend(one for one in sentences if not is_known(one))

            async with httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}",
                timeout=30,
                event_hooks={"response": [listen]},
            ) as client:
                try:
                    yield House(
                        *(pool, port, supervisor, token, ring, hub, client, keyring, chaos),
                        history,
                        fetchers,
                        refused,
                    )
                finally:
                    supervisor.shutdown()
            assert not unknown, "no table of a language has these sentences"


@pytest.fixture
async def house(database_url: str, pool: Pool) -> AsyncIterator[House]:
    """A running control plane with small limits."""
    async with open_house(database_url, pool) as running:
        yield running


@pytest.fixture
async def limited(database_url: str, pool: Pool) -> AsyncIterator[House]:
    """A control plane where an address without a key has three calls, and one in three seconds."""
    async with open_house(database_url, pool, anonymous_rate=0.3) as running:
        yield running


@pytest.fixture
def own_server() -> Iterator[Cluster]:
    """A server that a test may stop and start."""
    bin_dir = binaries(18)
    assert bin_dir is not None
    cluster = Cluster(bin_dir)
    try:
        cluster.start()
        cluster.admin("CREATE DATABASE relay")
        yield cluster
    finally:
        cluster.remove()
