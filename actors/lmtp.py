"""LMTP: takes mail from a mail server in front, over a Unix socket, and hands it to the writer.

Promises what `actors/serving.py` does of its ports.  It is in this process however many there are
for SMTP, and asks the writer of this one.

Fails: without the writer or the database, sessions get 4xx.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from actors.accepting import accepting_server
from actors.messages import Accept, Consult
from actors.serving import serve
from relay.db.pool import Pool
from relay.mailboxes.capture import Capture
from relay.returns.paths import ReturnPaths
from relay.smtp.limits import SmtpLimits
from relay.smtp.refused import Note
from relay.storage import AMPLE, Space
from supervisor import Context, Mailbox


async def run(
    ctx: Context,
    *,
    sockets: Sequence[socket.socket],
    pool: Pool,
    writer: Mailbox[Accept],
    limits: SmtpLimits | None = None,
    domains: Sequence[str] = ("relay.localhost",),
    filter_: Mailbox[Consult] | None = None,
    filter_hooks: frozenset[str] = frozenset(),
    space: Space = AMPLE,
    capture: Capture | None = None,
    return_paths: ReturnPaths | None = None,
    note_refused: Note | None = None,
) -> None:
    """Serve LMTP on `sockets`, which listen already and stay open, until drained.

    The others as in `actors/ingest.py`.
    """
    server, beside = accepting_server(
        pool,
        writer,
        capture=capture,
        filter_=filter_,
        filter_hooks=filter_hooks,
        limits=limits,
        domains=domains,
        space=space,
        return_paths=return_paths,
        lmtp=True,
        note_refused=note_refused,
    )
    await serve(ctx, server, sockets, beside=beside)
