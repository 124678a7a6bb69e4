"""The data directory: one relay at a time, and nothing half-written."""

import os
import stat
import subprocess
import sys

import pytest

from relay.datadir import DataDir
from relay.errors import ConfigError


def test_a_second_relay_is_refused_and_the_first_keeps_its_file(tmp_path):
    """The lock belongs to one; what the first published stays as it was."""
    first, second = DataDir(tmp_path / "var"), DataDir(tmp_path / "var")
    first.prepare()
    first.write_run({"pid": 1})
    with pytest.raises(ConfigError, match="Another relay holds the data directory"):
        second.prepare()
    assert second.read_run() == {"pid": 1}
    first.release()
    second.prepare()
    second.release()


def test_what_a_killed_relay_left_is_stale(tmp_path):
    """A relay.json whose writer is dead is not believed, and goes at the next start."""
    data = DataDir(tmp_path / "var")
    script = (
        "import os, sys; from pathlib import Path; from relay.datadir import DataDir\n"
        "d = DataDir(Path(sys.argv[1])); d.prepare(); d.write_run({'pid': os.getpid()})\n"
        "os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(data.path)], check=False)
    assert done.returncode == -9
    assert data.run_file.exists()
    assert data.read_run() is None
    data.prepare()
    assert not data.run_file.exists()
    data.release()


def test_secrets_are_made_once_and_kept_to_ourselves(tmp_path):
    """Keys survive a restart, and nobody else can read them."""
    data = DataDir(tmp_path / "var")
    data.prepare()
    signing = data.secret_keys("")
    assert [len(key) for key in signing] == [32]
    assert DataDir(data.path).secret_keys("") == signing
    assert stat.S_IMODE(os.stat(data.path / "secret_key").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(data.path).st_mode) == 0o700
    assert data.secret_keys("00" * 32 + "," + "11" * 32) == (bytes(32), b"\x11" * 32)
    data.release()


def test_an_unusable_directory_is_a_configuration_error(tmp_path):
    """A file in the way is said in one sentence that names the setting."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--data-dir or RELAY_DATA_DIR\.$"):
        DataDir(tmp_path / "file" / "var").prepare()


def test_the_device_key_is_made_once_and_never_silently_replaced(tmp_path):
    """Private, mode 0600, the same at each start; a setting wins; a damaged file is an error."""
    data = DataDir(tmp_path)
    key = data.device_key("")
    assert len(key) == 32
    assert (tmp_path / "device_key").stat().st_mode & 0o777 == 0o600
    assert data.device_key("") == key
    assert data.device_key("5a" * 32) == bytes.fromhex("5a" * 32)
    assert data.device_key("") == key
    (tmp_path / "device_key").write_text(key.hex()[:-2])
    with pytest.raises(ConfigError, match="device_key"):
        data.device_key("")
