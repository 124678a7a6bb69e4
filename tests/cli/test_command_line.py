"""The boundary of the program: exit codes, one sentence on stderr, nothing slow to load."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relay import __version__
from relay.cli.client import credential, segment
from relay.cli.exits import Failure
from relay.datadir import DataDir
from tests.cli.command import RELAY, cli, environment, on_terminal
from tests.relay_process import RelayProcess

NEEDS_RELAY = [
    ("status",),
    ("tail",),
    ("mailbox", "list"),
    ("messages", "list", "a@b"),
    ("key", "list"),
    ("db", "url"),
]


@pytest.mark.parametrize("arguments", NEEDS_RELAY, ids=" ".join)
def test_without_a_relay_one_sentence_and_69(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """A command that needs a relay says in one sentence that none runs, where it looked, and how to
    start one there."""
    done = cli(*arguments, "--data-dir", tmp_path)
    assert done.returncode == 69
    assert done.stdout == b""
    text = done.stderr.decode()
    assert text.startswith("relay: No relay ")
    assert f"with `relay up --data-dir {tmp_path}`" in text
    assert text.count("\n") == 1


def test_a_relay_that_is_starting_is_waited_for(relay: RelayProcess, tmp_path: Path) -> None:
    """It holds its directory and has published nothing yet: the command does its work later."""
    data = DataDir(tmp_path)
    data.prepare()
    process = subprocess.Popen(
        [*RELAY, "status", "--data-dir", tmp_path],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.5)
        data.write_run(relay.run)
        out, err = process.communicate(timeout=30)
        # The relay is shared: it may warn of what other tests sent.
        said = [line for line in err.splitlines() if not line.startswith(b"warning: ")]
        assert (process.returncode, said) == (0, [])
        assert b"relay" in out
    finally:
        process.kill()
        process.communicate()
        data.release()


def test_a_command_right_after_the_start_does_its_work(database_url: str, tmp_path: Path) -> None:
    """`relay up &` and the next line of the script: the command waits, whatever is loaded yet."""
    process = RelayProcess(tmp_path / "data", env={"RELAY_DATABASE__URL": database_url})
    process.spawn()
    try:
        done = cli("status", "--data-dir", process.data_dir)
        assert (done.returncode, done.stderr) == (0, b"")
        assert b"relay" in done.stdout
    finally:
        assert process.stop() == 0


def test_the_data_directory_is_named_by_the_environment_else_var(tmp_path: Path) -> None:
    """--data-dir wins over RELAY_DATA_DIR, which wins over ./var."""
    assert str(tmp_path / "var") in cli("status", cwd=tmp_path).stderr.decode()
    named = cli("status", cwd=tmp_path, env={"RELAY_DATA_DIR": str(tmp_path / "other")})
    assert str(tmp_path / "other") in named.stderr.decode()


def test_wrong_usage_is_2(tmp_path: Path) -> None:
    """Unknown commands, options and malformed values end with 2."""
    assert cli("nonsense").returncode == 2
    assert cli("status", "--nonsense").returncode == 2
    assert cli("tail", "--grep", "=novalue", "--data-dir", tmp_path).returncode == 2


def test_a_configuration_error_is_78(tmp_path: Path) -> None:
    """A misspelt setting ends every command that reads settings with 78 and one sentence."""
    for arguments in (("config", "check"), ("config", "show"), ("db", "check"), ("up",)):
        done = cli(*arguments, cwd=tmp_path, env={"RELAY_SMTP__BINDD": "x"})
        assert done.returncode == 78, arguments
        assert b"RELAY_SMTP__BIND?" in done.stderr
        assert done.stderr.count(b"\n") == 1


def test_an_unexpected_failure_is_70_without_a_traceback(tmp_path: Path) -> None:
    """What nobody expected is one sentence; with the log level debug it has its traceback."""
    program = (
        "import relay.cli as c, relay.cli.status as s, sys; sys.argv = ['relay', 'status'];"
        "s.status.callback = lambda **_: 1 / 0; c.main()"
    )
    for level, traced in (("info", False), ("debug", True)):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=environment(RELAY_LOG__LEVEL=level),
            cwd=tmp_path,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 70
        assert b"relay: Internal failure: ZeroDivisionError: division by zero" in done.stderr
        assert (b"Traceback" in done.stderr) is traced


def test_version_and_help_are_on_stdout() -> None:
    """--version prints name and version, --help the exit codes and how to complete."""
    assert cli("--version").stdout.decode() == f"relay {__version__}\n"
    text = cli("--help").stdout.decode()
    assert "69 no relay" in text
    assert "_RELAY_COMPLETE=bash_source" in text
    assert "--install-completion" in text


def test_completion_knows_the_commands() -> None:
    """The shell completion of click answers for the program's name."""
    done = cli(
        env={"_RELAY_COMPLETE": "bash_complete", "COMP_WORDS": "relay mail", "COMP_CWORD": "1"}
    )
    assert b"plain,mailbox" in done.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    """When the reader of stdout is gone, nothing is said on stderr and the code is 141."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*RELAY, "config", "show", "--json"],
            env=environment(),
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_relay_that_does_not_answer_is_69(tmp_path: Path) -> None:
    """A relay.json whose relay has gone deaf gives one sentence and 69, not a traceback."""
    import fcntl

    (tmp_path / "run").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "run/lock").open("w") as f:
        port = listener.getsockname()[1]
        fcntl.flock(f, fcntl.LOCK_EX)
        run = {"pid": os.getpid(), "http": f"http://127.0.0.1:{port}", "admin_token": "ra_x"}
        (tmp_path / "run/relay.json").write_text(json.dumps(run))
        process = subprocess.Popen(
            [*RELAY, "status", "--data-dir", tmp_path],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = listener.accept()
        connection.recv(65536)
        connection.close()
        _, said = process.communicate(timeout=60)
        assert process.returncode == 69
        assert (
            said
            == (
                f"relay: The relay at http://127.0.0.1:{port} broke the connection; "
                "it may have just stopped.\n"
            ).encode()
        )
        listener.close()
        for command in (("status",), ("tail", "-f")):
            done = cli(*command, "--data-dir", tmp_path)
            assert done.returncode == 69
            assert b"does not answer" in done.stderr


def test_an_interrupt_is_130(tmp_path: Path) -> None:
    """Ctrl-C ends a waiting command with 130 and no traceback."""
    import fcntl

    (tmp_path / "run").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener, (tmp_path / "run/lock").open("w") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        run = {"pid": os.getpid(), "http": base, "admin_token": "ra_x"}
        (tmp_path / "run/relay.json").write_text(json.dumps(run))
        process = subprocess.Popen(
            [*RELAY, "status", "--data-dir", tmp_path],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said


def test_session_tokens_and_keys_travel_in_their_own_headers() -> None:
    """A session token is told from a key by its prefix; what cannot be a header is refused."""
    assert credential("rs_abc") == {"X-Session-Token": "rs_abc"}
    assert credential("rk_abc") == {"Authorization": "Bearer rk_abc"}
    for text in ("", " ", "a\r\nb", "ü"):
        with pytest.raises(Failure):
            credential(text)


def test_an_address_stays_one_segment_of_the_path() -> None:
    """Slashes, queries and dots of an address cannot lead to another call."""
    assert segment("a@relay.localhost") == "a@relay.localhost"
    assert segment("a/../b?c#d%") == "a%2F..%2Fb%3Fc%23d%25"
    assert segment("..") == "%2E%2E"


def test_settings_are_shown_with_their_origin_and_without_secrets(tmp_path: Path) -> None:
    """config show says environment, file or default, and masks secrets; --json has the values."""
    file = tmp_path / "relay.toml"
    file.write_text('[smtp]\nmax_recipients = 7\n[database]\nurl = "postgresql://u:geheim@h/d"\n')
    arguments = ("config", "show", "--config", file)
    text = cli(*arguments, env={"RELAY_HTTP__BIND": "127.0.0.1:1"}).stdout.decode()
    rows = {row.split()[0]: row.split() for row in text.splitlines()}
    assert rows["http.bind"][1:3] == ['"127.0.0.1:1"', "environment"]
    assert rows["smtp.max_recipients"][1:3] == ["7", str(file)]
    assert rows["smtp.max_connections"][1:3] == ["1000", "default"]
    assert "geheim" not in text
    values = json.loads(cli(*arguments, "--json").stdout)
    assert values["smtp.max_recipients"] == 7
    assert values["smtp.domains"] == ["relay.localhost"]


def test_a_valid_configuration_is_0(tmp_path: Path) -> None:
    """config check ends with 0 and says so."""
    done = cli("config", "check", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"The settings are valid.\n")


def test_settings_that_contradict_are_found_before_a_start(tmp_path: Path) -> None:
    """config check ends as a start would, with the same sentence."""
    contradicting = {
        "RELAY_SMTP__DOMAINS": "relay.example,returns.example",
        "RELAY_OUTBOUND__BOUNCE_DOMAIN": "Returns.Example",
    }
    said = []
    for arguments in (("config", "check"), ("up",)):
        done = cli(*arguments, cwd=tmp_path, env=contradicting)
        assert done.returncode == 78, arguments
        assert done.stderr.startswith(b"relay: RELAY_OUTBOUND__BOUNCE_DOMAIN is one of RELAY_SMTP")
        said.append(done.stderr)
    assert said[0] == said[1]


def test_wrong_traffic_rules_are_found_before_a_start(tmp_path: Path) -> None:
    """config check reads the file that a start would read, and ends as that would: 78, a line."""
    rules = tmp_path / "rules.toml"
    rules.write_text("[provider.bigmail]\nmx = ['bigmail.example']\nconections = 3\n")
    done = cli("config", "check", cwd=tmp_path, env={"RELAY_OUTBOUND__SHAPING": str(rules)})
    assert done.returncode == 78
    assert b"line 3: provider.bigmail.conections: there is no such key" in done.stderr


def test_colours_are_for_terminals_that_want_them(tmp_path: Path) -> None:
    """On a terminal a table has colours; with NO_COLOR it has none."""
    code, text = on_terminal("config", "show")
    assert code == 0
    assert "\x1b[" in text
    assert "\x1b[3" not in on_terminal("config", "show", NO_COLOR="1")[1]
    assert b"\x1b" not in cli("config", "show").stdout
