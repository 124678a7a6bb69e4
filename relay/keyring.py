"""The keys that a relay signs and encrypts with, and their rotation while it runs.

A file apart from `relay/datadir.py`, which keeps them: importing cryptography takes longer than
most commands do.

Fails with `ConfigError` where the data directory does.
"""

from __future__ import annotations

from cryptography.fernet import Fernet

from relay.chance import token_bytes
from relay.crypto import Vault
from relay.datadir import DataDir


class Keyring:
    """The signing and encryption keys of a relay, which may be rotated while it runs.

    Keys that the settings give are the operator's to change; those of the data directory are
    changed here, each change durable before it is used.  Blocking: a file is written.
    """

    OLD_SIGNING_KEYS = 4
    """The number of former signing keys that go on verifying what they signed."""

    def __init__(self, data: DataDir, secret_key: str = "", encryption_keys: str = "") -> None:
        """Read the keys, or make them; the arguments are the settings of the same names."""
        self._data = data
        self.signing_is_ours = not secret_key
        self.encryption_is_ours = not encryption_keys
        self._signing = data.secret_keys(secret_key)
        text = encryption_keys or data.kept("encryption_keys", _new_encryption_key)
        self._encryption = tuple(part.strip() for part in text.split(",") if part.strip())
        self.vault = Vault(self._encryption)

    @property
    def signing(self) -> tuple[bytes, ...]:
        """The signing keys of 32 bytes: the first signs, all verify."""
        return self._signing

    @property
    def encryption_count(self) -> int:
        """How many encryption keys there are; more than one while a rotation is unfinished."""
        return len(self._encryption)

    def renew_signing(self) -> None:
        """Sign with a new key from now on."""
        keys = (token_bytes(32), *self._signing)[: 1 + self.OLD_SIGNING_KEYS]
        self._data.keep("secret_key", ",".join(key.hex() for key in keys))
        self._signing = keys

    def renew_encryption(self) -> None:
        """Encrypt with a new key from now on; the former ones still decrypt."""
        keys = (_new_encryption_key(), *self._encryption)
        self._data.keep("encryption_keys", ",".join(keys))
        self._encryption = keys
        self.vault.replace(keys)

    def drop_old_encryption(self) -> None:
        """Forget the former encryption keys, which nothing stored needs any more.

        The vault goes on knowing them until the next start: somebody may have read a row a
        moment before it was sealed anew.
        """
        self._data.keep("encryption_keys", self._encryption[0])
        self._encryption = self._encryption[:1]


def _new_encryption_key() -> str:
    return Fernet.generate_key().decode()
