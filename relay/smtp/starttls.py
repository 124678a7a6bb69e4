"""STARTTLS: an SMTP session drops what it was told in clear, and goes on in TLS.

Promises:
- Nothing that came before the handshake is read after it (RFC 3207, section 4.2): of what the
  session had read it is dropped, and what follows STARTTLS in the socket is no handshake.
- Nothing is said in clear once `begin` was called, whatever becomes of the handshake.

Fails with `SessionOver`, and with `OSError` as the socket does.  No deadlines here: the session has
them.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable

from relay.ports.tls import HELLO, TlsSocket, count
from relay.smtp.lines import Lines, SessionOver
from relay.smtp.waits import Answer, Waits


async def begin(
    lines: Lines, waits: Waits, context: ssl.SSLContext, turn: Callable[[bool], Answer[None]]
) -> None:
    """Shake hands, once STARTTLS is answered, and go on in TLS.

    `turn` gives the answer to wait for before each part of the handshake, told whether it is the
    first.
    """
    await lines.flush()
    lines.all_unread()
    tls = TlsSocket(lines.sock)
    lines.sock = tls  # from now on nothing is said in clear
    try:
        await _shake(tls, waits, context, turn)
    except ssl.SSLError as error:
        raise SessionOver("tls") from error
    finally:
        count(tls)
    waits.go_through(tls)
    lines.encrypted = True


async def _shake(
    tls: TlsSocket, waits: Waits, context: ssl.SSLContext, turn: Callable[[bool], Answer[None]]
) -> None:
    while not tls.established:
        data = await waits.read(HELLO)
        if not data:
            raise SessionOver("closed")
        await waits.wait(turn(not tls.begun))
        tls.shake(data, context)
        if not tls.push():
            async with waits.pinned() as pinned:
                while not tls.push():
                    await pinned.wait_writable(tls)
