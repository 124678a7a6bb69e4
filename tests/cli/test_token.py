"""`relay token verify`: offline, with the keys of the settings or of the data directory."""

import json
import subprocess
from pathlib import Path

from relay.lifecycle.tokens import Action, sign
from tests.cli.command import cli

KEY = bytes(range(32))
KEYS = {"RELAY_SECRET_KEY": KEY.hex()}
SECRET = bytes(32)
ACTIVATION = sign(KEY, Action.ACTIVATION, SECRET, "12345")
RECOVERY = sign(KEY, Action.PASSWORD_RECOVERY, SECRET, "12345")
# Made by another implementation; one argument in 32 begins with a hyphen.
HYPHENS = "--DTy5LsbDeLP_AweXIPSjL3_avQMT5cH_bRxPy1uxQLVhXKaw7Oxd7NYkcJ6MZmnnqWqTcBPHA5z7bqunXEAA"


def verify(
    data: Path, *arguments: str, env: dict[str, str] = KEYS, input: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    """Run the command on a data directory that no relay has seen."""
    return cli("token", "verify", *arguments, "--data-dir", data, env=env, input=input)


def test_the_exit_code_tells_and_so_does_the_line(tmp_path: Path) -> None:
    """0 and what it is for; 1 for all else; a recovery needs its code."""
    for arguments, code, said in (
        ((ACTIVATION,), 0, b"valid: activation\n"),
        ((ACTIVATION, "--code", "00000"), 0, b"valid: activation\n"),
        ((RECOVERY, "--code", "12345"), 0, b"valid: password_recovery\n"),
        (("--code", "12345", RECOVERY), 0, b"valid: password_recovery\n"),
        ((RECOVERY,), 1, b"not valid\n"),
        ((RECOVERY, "--code", "12346"), 1, b"not valid\n"),
        ((ACTIVATION[:-1] + "_",), 1, b"not valid\n"),
        (("nonsense",), 1, b"not valid\n"),
        (("",), 1, b"not valid\n"),
    ):
        done = verify(tmp_path, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (code, said, b""), arguments


def test_a_token_that_begins_with_hyphens_is_no_option(tmp_path: Path) -> None:
    """With `--` before it or without, before options or behind."""
    env = {"RELAY_SECRET_KEY": "cafebabe" * 8}
    for arguments in ((HYPHENS,), ("--json", HYPHENS), (HYPHENS, "--json")):
        assert verify(tmp_path, *arguments, env=env).returncode == 0
    done = cli("token", "verify", "--data-dir", tmp_path, "--", HYPHENS, env=env)
    assert done.returncode == 0
    # Its second letter is an option's name.
    assert verify(tmp_path, "-h" + ACTIVATION[2:]).stdout == b"not valid\n"


def test_json_and_standard_input(tmp_path: Path) -> None:
    """For programs, and out of other users' sight."""
    shown = json.loads(verify(tmp_path, ACTIVATION, "--json").stdout)
    assert shown == {"valid": True, "action": "activation"}
    done = verify(tmp_path, "-", "--json", input=RECOVERY.encode() + b"\n")
    assert json.loads(done.stdout) == {"valid": False, "action": None}
    assert done.returncode == 1
    assert verify(tmp_path, "-", input=ACTIVATION.encode() + b"\n").returncode == 0


def test_keys_come_from_the_settings_or_the_data_directory_and_are_not_made(
    tmp_path: Path,
) -> None:
    """Several, newest first; without any that is a configuration error."""
    none = verify(tmp_path, ACTIVATION, env={})
    assert none.returncode == 78
    assert none.stderr.startswith(b"relay: There is no signing key")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "secret_key").write_text(f"{bytes(32).hex()},{KEY.hex()}\n")
    assert verify(tmp_path, ACTIVATION, env={}).returncode == 0
    assert verify(tmp_path, ACTIVATION, env={"RELAY_SECRET_KEY": "00" * 32}).returncode == 1
    both = {"RELAY_SECRET_KEY": f"{'00' * 32},{KEY.hex()}"}
    assert verify(tmp_path, ACTIVATION, env=both).returncode == 0


def test_wrong_usage_is_2(tmp_path: Path) -> None:
    """No token, or two."""
    assert verify(tmp_path).returncode == 2
    assert verify(tmp_path, ACTIVATION, RECOVERY).returncode == 2
