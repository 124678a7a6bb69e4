"""POP3: lets mail readers, and test suites, fetch what came.

Promises what `actors/serving.py` does of its ports.

Fails: without the database commands get -ERR [SYS/TEMP].
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from actors.serving import serve
from relay.access.keys import Keys
from relay.access.password_checks import PasswordChecks
from relay.db.pool import Pool
from relay.mailboxes.messages import Messages
from relay.mailboxes.store import Store
from relay.pop3.limits import Pop3Limits
from relay.pop3.server import Server
from relay.pop3.sign_in import MailboxAuthenticator
from relay.ports.certificate import Certificate
from relay.ports.proxy import Network
from supervisor import Context

POP3_DRAIN = 30.0
"""Seconds that a command which is being obeyed may take to finish after SIGTERM."""


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    tls_sockets: Sequence[socket.socket] = (),
    pool: Pool,
    store: Store,
    admin_token_hash: bytes,
    limits: Pop3Limits | None = None,
    certificate: Certificate | None = None,
    proxies: Sequence[Network] = (),
    password_checks: PasswordChecks | None = None,
) -> None:
    """Serve POP3 on `sockets`, which listen already and stay open, until drained.

    On `tls_sockets` TLS comes before anything is said; `certificate` is for that, and STLS.  Only
    the PROXY protocol comes before it, from `proxies`.  `password_checks`: those that other ports
    share.
    """
    authenticator = MailboxAuthenticator(store, Keys(pool), admin_token_hash)
    server = Server(
        authenticator,
        password_checks or PasswordChecks(),
        Messages(pool),
        limits,
        certificate,
        proxies,
    )
    await serve(ctx, server, sockets, tls_sockets=tls_sockets)
