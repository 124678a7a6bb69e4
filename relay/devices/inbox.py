"""The device inbox as the control plane sees it: a blob put in, what waits, who is connected.

Fails with `StoreUnavailable` where the store does not answer (`check` says so in a sentence).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from relay.devices.intake import Intake
from relay.devices.server import DeviceServer, SessionStatistics
from relay.devices.sqlite import SqliteStore
from relay.devices.store import InboxStore, StoreStatistics, StoreUnavailable


@dataclass(frozen=True)
class DeviceInbox:
    """The device inbox of this node.  `server` is None where no sessions are served."""

    store: InboxStore
    intake: Intake
    server: DeviceServer | None = None

    async def check(self) -> str | None:
        """Return None when the store answers and can take a blob, else what is wrong."""
        try:
            await self.store.check()
        except StoreUnavailable as error:
            return f"devices-store: the device store does not answer ({error})"
        return None

    async def overview(self) -> StoreStatistics:
        """Return what waits, a few seconds old, or `StoreUnavailable`."""
        await self.store.check()
        return self.store.statistics()

    async def snapshot(self) -> Path | None:
        """Copy what waits, as it is now, into a file of its own; None where PostgreSQL keeps it."""
        if not isinstance(self.store, SqliteStore):
            return None
        return await self.store.snapshot()

    def sessions(self) -> SessionStatistics:
        """Return the sessions of this node."""
        return SessionStatistics(0, 0, 0) if self.server is None else self.server.statistics()

    def sessions_of(self, key: bytes) -> int:
        """Return how many receive sessions a device has on this node."""
        return 0 if self.server is None else self.server.sessions_of(key)
