"""The keys of a relay: made once, kept to ourselves, rotated while it runs."""

import os
import stat
from uuid import uuid4

import pytest

from relay.crypto import Unreadable
from relay.datadir import DataDir
from relay.keyring import Keyring


def test_an_encryption_key_is_made_once(tmp_path):
    """It survives a restart, and nobody else can read it."""
    account = uuid4()
    sealed = Keyring(DataDir(tmp_path)).vault.seal(account, "secret")
    assert Keyring(DataDir(tmp_path)).vault.open(account, sealed) == "secret"
    assert stat.S_IMODE(os.stat(tmp_path / "encryption_keys").st_mode) == 0o600


def test_a_new_signing_key_leaves_a_few_old_ones_that_verify(tmp_path):
    """Each change is in the file at once, newest first; the oldest are forgotten in the end."""
    keyring = Keyring(DataDir(tmp_path))
    made = list(keyring.signing)
    for _ in range(Keyring.OLD_SIGNING_KEYS + 2):
        keyring.renew_signing()
        made.insert(0, keyring.signing[0])
        assert Keyring(DataDir(tmp_path)).signing == keyring.signing
    assert len(set(made)) == len(made)
    assert keyring.signing == tuple(made[: 1 + Keyring.OLD_SIGNING_KEYS])


def test_dropped_keys_open_what_was_read_before(tmp_path):
    """The file has the newest encryption key alone; the running vault still knows the others."""
    keyring = Keyring(DataDir(tmp_path))
    account = uuid4()
    sealed = keyring.vault.seal(account, "secret")
    keyring.renew_encryption()
    assert Keyring(DataDir(tmp_path)).encryption_count == 2
    keyring.drop_old_encryption()
    assert keyring.vault.open(account, sealed) == "secret"
    assert stat.S_IMODE(os.stat(tmp_path / "encryption_keys").st_mode) == 0o600
    with pytest.raises(Unreadable):
        Keyring(DataDir(tmp_path)).vault.open(account, sealed)
