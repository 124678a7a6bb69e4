"""What the actors of one process share."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relay.db.embedded import Embedded
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.noise import KeyPair
from relay.keyring import Keyring
from relay.log import LogRing
from relay.outbound.shaping.file import ShapingFile
from relay.ports.certificate import Certificate
from relay.settings import Source
from relay.storage import AMPLE, Space
from supervisor import Supervisor


@dataclass(frozen=True)
class Resources:
    """What the actors share; made by `relay.app`, and as long-lived as the process."""

    supervisor: Supervisor
    server: Embedded | None
    dsn: str
    listen_dsn: str
    pool: Pool
    hub: Hub
    smtp_sockets: tuple[socket.socket, ...]
    submission_sockets: tuple[socket.socket, ...]
    submission_tls_sockets: tuple[socket.socket, ...]
    lmtp_sockets: tuple[socket.socket, ...]
    pop3_sockets: tuple[socket.socket, ...]
    pop3_tls_sockets: tuple[socket.socket, ...]
    http_sockets: tuple[socket.socket, ...]
    push_sockets: tuple[socket.socket, ...]
    receive_sockets: tuple[socket.socket, ...]
    device_key: KeyPair | None  # where device sessions are served
    data_dir: Path
    admin_token_hash: bytes
    keyring: Keyring
    logs: LogRing
    page_url: str
    """The address at which a letter's reader reaches this relay's pages; empty: it is unknown."""
    space: Space = AMPLE
    """Of the data directory's disk."""
    certificate: Certificate | None = None
    """For TLS on the ports that mail comes and is fetched by."""
    shaping: ShapingFile = field(default_factory=ShapingFile.load)
    """The traffic rules of direct delivery."""
    origins: Mapping[str, Source] = field(default_factory=dict)
    """Where the settings that somebody has set come from."""
