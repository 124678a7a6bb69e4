"""Submission: takes mail that leaves from programs that sign in, and queues it.

Promises
- What `actors/serving.py` does of its ports.
- What was queued is announced: to this process's claimer, or to all others where none runs here.

Fails: without the database sessions get 4xx.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Sequence
from functools import partial
from typing import Never

from actors.serving import serve
from relay.access.keys import Keys
from relay.access.password_checks import PasswordChecks
from relay.db.pool import Pool
from relay.errors import Bug
from relay.mailboxes.names import Names
from relay.outbound.active_queue.right_of_way import RightOfWay
from relay.outbound.queue.announcer import Announcer
from relay.outbound.queue.enqueue import announce
from relay.outbound.queue.lanes import any_high
from relay.outbound.submission.port import Submission
from relay.outbound.submission.sending import Enqueuer, Sending, WakeOutbound
from relay.outbound.suppression.suppressions import Suppressions
from relay.ports.certificate import Certificate
from relay.ports.proxy import Network
from relay.smtp.limits import SmtpLimits
from relay.smtp.server import Server
from relay.storage import AMPLE, Space
from supervisor import Context

_ANNOUNCE_EVERY = 0.05  # s


class _NoMailboxes:
    """What takes the place of mailboxes: a submission port asks `Submission` instead."""

    def find(self, address: str) -> Never:
        raise Bug("a submission was to go to a mailbox")

    def store(self, *_: object) -> Never:
        raise Bug("a submission was to go to a mailbox")


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    tls_sockets: Sequence[socket.socket] = (),
    pool: Pool,
    keys: Keys,
    names: Names,
    admin_token_hash: bytes,
    right_of_way: RightOfWay,
    wake_outbound: WakeOutbound | None = None,
    limits: SmtpLimits | None = None,
    hostname: str = "relay.localhost",
    space: Space = AMPLE,
    certificate: Certificate | None = None,
    proxies: Sequence[Network] = (),
    password_checks: PasswordChecks | None = None,
    reports: bool = True,
    lifetime: float = math.inf,
) -> None:
    """Serve submission on `sockets`, which listen already and stay open, until drained.

    On `tls_sockets` TLS comes before anything is said; `certificate` is for that, and STARTTLS.
    Only the PROXY protocol comes before it, from `proxies`.
    `keys` are those of this process, so that what is revoked here is known at once; `names` those
    that only the administrator sends from; `wake_outbound` tells this process's claimer of what was
    queued, None where none runs; without `space` on the disk nothing is taken; `password_checks`:
    those that other ports share; `reports` and `lifetime` as `Submission` has them.
    """
    # For the claimers of other processes, where none runs here.
    announcer = Announcer(partial(announce, pool), rest=_ANNOUNCE_EVERY)
    sending = Sending(
        keys,
        names,
        Enqueuer(pool, right_of_way).enqueue,
        wake_outbound or (lambda due_lanes: announcer.soon(high=any_high(due_lanes))),
    )
    submission = Submission(
        keys,
        sending,
        Suppressions(pool),
        admin_token_hash,
        hostname,
        password_checks or PasswordChecks(),
        reports=reports,
        lifetime=lifetime,
    )
    server = Server(
        _NoMailboxes(),
        str,
        limits=limits,
        domains=(hostname,),
        space=space,
        certificate=certificate,
        proxies=proxies,
        authenticator=submission,
        submissions=submission,
    )
    await serve(ctx, server, sockets, tls_sockets=tls_sockets, beside=[announcer.run])
