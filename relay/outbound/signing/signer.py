"""Who signs what leaves: the active keys of DKIM, kept in memory, and the mails that need them.

Promises
- What `DkimKeys` commits counts here as soon as the database's news of it comes, on every node;
  unasked, the keys are read every `LOOK_EVERY` seconds.  Where nothing has been read yet, nothing
  is sent: `known` waits.
- Mail of domains without a key is not looked at while there is no key at all, and otherwise only
  its From is.
- A key is decrypted and loaded once, when it is first needed, not for each message.
- What cannot be signed for want of the key does not go out unsigned: `Unreadable`, and it is tried
  again.  What cannot be signed for what it is (`relay.outbound.signing.dkim`) goes out as it is.

Fails: `signed` with `Unreadable` or `Unloadable`; `refresh` with `DatabaseUnavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import trio
from prometheus_client import Counter

from relay.crypto import Unreadable, Vault
from relay.db import channels
from relay.db.listen import Hub
from relay.errors import DatabaseUnavailable
from relay.log import get_logger
from relay.metrics import registry
from relay.outbound.queue.claimed import Claimed
from relay.outbound.signing.dkim import (
    PrivateKey,
    Unloadable,
    Unsigned,
    author_domain,
    load,
    sign,
    unsigned,
)
from relay.outbound.signing.dkim_keys import DkimKeys, SealedKey
from relay.outbound.signing.processes import SigningProcesses, ToSign
from relay.smtp.client import Mail

log = get_logger()

LOOK_EVERY = 60.0
"""Seconds after which keys are read again, whatever was announced."""

_RETRY = 0.5  # s; after which a database that is away is asked again
_SHORT = 16_384  # bytes of a header in which From is looked for at once

_SIGNED = Counter(
    "relay_outbound_signed", "Mails that were signed (DKIM) on the way out.", registry=registry
)


class Begun(NamedTuple):
    """A mail, its signatures but for what their keys make of the digests, and these in order."""

    mail: Mail
    fields: Sequence[Unsigned]
    digests: Sequence[ToSign]

    def signed(self, signatures: Sequence[bytes]) -> Mail:
        """The mail behind its fields, by the signatures of its digests; as it is without any."""
        if not signatures:
            return self.mail
        _SIGNED.inc()
        fields = zip(self.fields, signatures, strict=True)
        return self.mail.behind(b"".join(field.by(one) for field, one in fields))


class Signer:
    """Signs for the domains that have active keys."""

    def __init__(
        self, keys: DkimKeys, vault: Vault, processes: SigningProcesses | None = None
    ) -> None:
        """`processes`: sign where there is much to sign; `actors/sender.py` runs them."""
        self.processes = processes or SigningProcesses()
        self._keys = keys
        self._vault = vault
        self._domains: dict[str, Sequence[SealedKey]] = {}
        self._loaded: dict[UUID, PrivateKey] = {}
        self._known = trio.Event()
        self._begun = self._seen = 0  # the last look that was begun, and that whose keys these are

    async def refresh(self) -> None:
        """Read the keys that sign."""
        self._begun = look = self._begun + 1
        rows = await self._keys.active()
        if look < self._seen:
            return  # one that was begun later has ended
        self._seen = look
        domains: dict[str, list[SealedKey]] = {}
        for row in rows:
            domains.setdefault(row.domain, []).append(row)
        there = {row.id for row in rows}
        self.processes.forget(self._loaded.keys() - there)
        self._loaded = {id: key for id, key in self._loaded.items() if id in there}
        self._domains = dict(domains)
        self._known.set()

    async def follow(self, hub: Hub) -> None:
        """Keep the keys as they are in the database, until cancelled."""
        with hub.subscribe(channels.DKIM) as news:
            while True:
                try:
                    await self.refresh()
                except DatabaseUnavailable as error:
                    log.debug("signer.keys_not_read", reason=str(error))
                    await trio.sleep(_RETRY)
                    continue
                with trio.move_on_after(LOOK_EVERY):
                    await news.wait()

    @property
    def is_ready(self) -> bool:
        """Whether the keys have been read."""
        return self._known.is_set()

    async def known(self) -> None:
        """Wait until the keys have been read."""
        await self._known.wait()

    def wants(self, message: Claimed) -> bool:
        """Whether a message (with its body) may have to be signed: `signed` knows."""
        domains = self._domains
        if not domains:
            return False
        raw = message.raw
        if raw is None:
            domain = message.sender.rpartition("@")[2]
            return not domain.isascii() or domain.lower() in domains
        end = raw.find(b"\r\n\r\n", 0, _SHORT)
        return end < 0 or author_domain(raw[: end + 4]) in domains

    def begin(self, mail: Mail) -> Begun:
        """What has to be signed of a mail; of a long one this takes its time."""
        fields = unsigned(mail.data, self._keys_of) if self._domains else []
        return Begun(
            mail,
            [field for _, field in fields],
            [ToSign(row.id, self._key(row), field.digest) for row, field in fields],
        )

    def signed(self, mail: Mail) -> Mail:
        """The mail behind its signatures, or as it is.  In a thread: it takes its time."""
        begun = self.begin(mail)
        return begun.signed([sign(key, digest) for _, key, digest in begun.digests])

    def _keys_of(self, domain: str) -> Sequence[SealedKey]:
        return self._domains.get(domain, ())

    def _key(self, row: SealedKey) -> PrivateKey:
        key = self._loaded.get(row.id)
        if key is None:
            try:
                key = load(self._vault.open(row.id, row.private_key))
            except (Unreadable, Unloadable):
                log.error("signer.key_unusable", domain=row.domain, selector=row.selector)  # noqa: TRY400 - nothing of the key
                raise
            self._loaded[row.id] = key
        return key
