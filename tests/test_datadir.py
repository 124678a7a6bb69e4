"""The data directory: one relay at a time, and nothing half-written."""

import os
import stat
import subprocess
import sys
from pathlib import Path

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


NOBODY = 65534


def own(path: Path, *, uid: int = -1, mode: int | None = None) -> None:
    """Give a file to somebody, as only root may."""
    if uid >= 0 and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, uid, -1)
    if mode is not None:
        path.chmod(mode)


@pytest.mark.parametrize(("uid", "mode"), [(NOBODY, 0o700), (NOBODY, 0o777), (-1, 0o777)])
@pytest.mark.parametrize("place", [".", "run"])
def test_what_somebody_else_made_is_no_data_directory(tmp_path, place, uid, mode):
    """Whoever made it, or may write to it, would know the keys: nothing is read or made in it."""
    data = DataDir(tmp_path / "var")
    (data.path / "run").mkdir(mode=0o700, parents=True)
    own(data.path / place, uid=uid, mode=mode)
    with pytest.raises(ConfigError, match=r"--data-dir or RELAY_DATA_DIR\.$"):
        data.prepare()
    assert not (data.path / "run" / "lock").exists()
    own(data.path / place, uid=os.geteuid() if uid >= 0 else -1, mode=0o700)
    data.prepare()
    data.release()


@pytest.mark.parametrize(("uid", "mode"), [(NOBODY, 0o600), (-1, 0o666)])
@pytest.mark.parametrize("name", ["secret_key", "device_key"])
def test_a_secret_of_somebody_else_is_not_used(tmp_path, name, uid, mode):
    """A key that another user has put there is known to that user."""
    data = DataDir(tmp_path)
    (tmp_path / name).write_text("00" * 32)
    own(tmp_path / name, uid=uid, mode=mode)
    with pytest.raises(ConfigError, match=name):
        data.kept(name, lambda: "11" * 32)


@pytest.mark.parametrize(("uid", "mode"), [(NOBODY, 0o644), (-1, 0o666)])
@pytest.mark.parametrize("place", [".", "run", "run/relay.json"])
def test_nobody_else_says_where_the_relay_is(tmp_path, place, uid, mode):
    """Who asks a relay of this directory hands it tokens: it is the one that was started here."""
    data = DataDir(tmp_path / "var")
    data.prepare()
    data.write_run({"pid": 1})
    assert data.read_run() == {"pid": 1}
    own(data.path / place, uid=uid, mode=mode | 0o111)
    with pytest.raises(ConfigError, match=r"RELAY_DATA_DIR\.$"):
        data.read_run()
    data.release()


def test_a_directory_that_a_group_may_write_to_is_used(tmp_path):
    """As volumes of Kubernetes are, by fsGroup, and what people make with umask 002."""
    data = DataDir(tmp_path / "var")
    data.path.mkdir()
    data.path.chmod(0o2775)
    data.prepare()
    (data.path / "secret_key").write_text("22" * 32)
    (data.path / "secret_key").chmod(0o660)
    assert data.secret_keys("") == (b"\x22" * 32,)
    data.release()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_a_volume_is_used_whosever_it_is(tmp_path):
    """An emptyDir has mode 0777, a volume from elsewhere any owner: who mounted it has decided."""
    data = DataDir(tmp_path / "var")
    data.path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"uid={NOBODY},mode=0777", "relay", str(data.path)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        data.prepare()
        own(data.path / "run", uid=NOBODY)
        data.secret_keys("")
        own(data.path / "secret_key", uid=NOBODY, mode=0o666)
        data.write_run({"pid": 1})
        assert data.read_run() == {"pid": 1}
        assert len(data.secret_keys("")) == 1
        data.release()
    finally:
        subprocess.run(["umount", str(data.path)], check=True)


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
