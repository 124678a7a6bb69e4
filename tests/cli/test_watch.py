"""`relay status --watch` and completion: what looks at a running relay and changes nothing."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import smtplib
import subprocess
import time
from pathlib import Path

import click
import pytest
from rich.console import Console

from relay.cli import cli as program
from relay.cli.status import rows
from relay.cli.watch import Watch, counters, picture, sparkline
from tests.cli.command import RELAY, cli, environment, leaves
from tests.relay_process import RelayProcess

SILENT = {
    "up",  # runs; its log is the output
    "collect",  # writes lines of a format of its own
    "mcp",  # speaks a protocol
    "simulate",  # its last line is JSON
    "messages raw",  # bytes
    "messages attachment",  # bytes
    "messages delete",
    "open",  # a browser, or a link alone
    "dkim remove",
    "mailbox delete",
    "sender remove",
    "suppression remove",
    "webhook remove",
    "webhook retry",
    "key revoke",
}


def test_whatever_prints_prints_json_too() -> None:
    """Each command that lists, shows or reports has --json; those that print nothing are named."""
    without = {
        name
        for name, command in leaves(program)
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without <= SILENT


def test_every_command_and_option_is_explained() -> None:
    """Each command has a first sentence, each option a help text."""
    for name, command in leaves(program):
        assert (command.help or "").strip(), name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.opts}"


def test_counters_are_read_from_the_metrics_page() -> None:
    """Sums stand under the name alone, single values under the first label's value too."""
    page = (
        b"# HELP relay_x_total what\n# TYPE relay_x_total counter\n"
        b'relay_x_total{outcome="good"} 3.0\nrelay_x_total{outcome="bad",kind="y"} 1e+03\n'
        b"relay_open 2.0\nprocess_cpu_seconds_total 4.5\n"
    )
    found = counters(page)
    assert found["relay_x_total", None] == 1003.0
    assert found["relay_x_total", "good"] == 3.0
    assert found["relay_x_total", "bad"] == 1000.0
    assert found["relay_open", None] == 2.0
    assert not any(name.startswith("process") for name, _ in found)


def test_a_plot_is_as_tall_as_its_largest_value() -> None:
    """Nothing is a flat line, and the largest value is a full block."""
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 5, 10]) == "▁▅█"


def _watching(relay: RelayProcess, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*RELAY, "status", "--watch", "--every", "0.2", "--data-dir", relay.data_dir, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_samples_are_lines_of_json(relay: RelayProcess) -> None:
    """--watch --json is a document a line, whose rates tell of the mail that came meanwhile."""
    address = relay.create_mailbox()
    watcher = _watching(relay, "--json")
    try:
        assert watcher.stdout is not None
        first = json.loads(watcher.stdout.readline())
        assert (first["tree"]["name"], first["rates"]) == ("relay", {})
        with smtplib.SMTP(*relay.smtp, timeout=30) as session:
            session.sendmail("a@b.example", address, b"Subject: x\r\n\r\nx\r\n")
        seen = [json.loads(watcher.stdout.readline()) for _ in range(4)]
        assert any(sample["rates"]["mail in"] > 0 for sample in seen)
        assert all(sample["queue"]["paused"] is False for sample in seen)
    finally:
        watcher.send_signal(2)
        _, said = watcher.communicate(timeout=30)
    assert (watcher.returncode, said) == (130, b"")


def test_what_needs_attention_is_in_a_sample_and_in_the_view(relay: RelayProcess) -> None:
    """In the words of the page, above the tree."""
    view = Watch(Path(relay.data_dir))
    assert cli("actor", "pause", "reaper", "--data-dir", relay.data_dir).returncode == 0
    try:
        sample = view.sample()
    finally:
        assert cli("actor", "resume", "reaper", "--data-dir", relay.data_dir).returncode == 0
    attention = {(one["grade"], one["text"]) for one in sample.as_json()["attention"]}
    assert ("warning", "Reaper is paused.") in attention
    assert sample.queue is not None
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(picture(sample, view, rows))
    text = console.export_text()
    assert text.index("queued") < text.index("warning: Reaper is paused.") < text.index("postgres")


def test_piped_a_sample_is_a_line_of_text(relay: RelayProcess) -> None:
    """Without a terminal the view is one line a sample."""
    watcher = _watching(relay)
    try:
        assert watcher.stdout is not None
        watcher.stdout.readline()
        line = watcher.stdout.readline().decode()
    finally:
        watcher.kill()
        watcher.communicate()
    assert re.match(r"\d\d:\d\d:\d\d  mail in \d+\.\d/s  mail out ", line)
    assert "restarts" in line


def test_on_a_terminal_the_view_is_drawn_in_place(relay: RelayProcess) -> None:
    """The view shows the flow, the queue and every actor, and leaves the terminal as it was."""
    ours, theirs = pty.openpty()
    watcher = subprocess.Popen(
        [*RELAY, "status", "--watch", "--every", "0.2", "--data-dir", relay.data_dir],
        env=environment(COLUMNS="120", LINES="40"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written, end = b"", time.monotonic() + 30
    while b"control" not in written and time.monotonic() < end:
        if select.select([ours], [], [], 1)[0]:
            written += os.read(ours, 65536)
    watcher.send_signal(2)
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:
        pass  # EIO: the watcher has gone
    os.close(ours)
    assert watcher.wait(30) == 130
    text = written.decode()
    for wanted in ("mail in", "mail out", "queued", "└─ control", "\x1b[32mrunning"):
        assert wanted in text, wanted
    assert text.rindex("\x1b[?1049l") > text.rindex("control"), "the terminal is given back"
    assert "Traceback" not in text


def test_the_view_outlives_a_restart(tmp_path: Path) -> None:
    """While the relay is away a note says so, once; when it is back, samples go on."""
    with RelayProcess(tmp_path / "data") as own:
        watcher = _watching(own, "--json")
        try:
            assert watcher.stdout is not None
            before = json.loads(watcher.stdout.readline())
            assert own.stop() == 0
            own.start()
            after = before
            while after["tree"]["started_at"] == before["tree"]["started_at"]:
                after = json.loads(watcher.stdout.readline())
        finally:
            watcher.kill()
            _, said = watcher.communicate()
        assert 1 <= said.count(b"relay: ") <= 4, said
    assert cli("status", "--watch", "--data-dir", own.data_dir).returncode == 69


def test_readiness_is_an_exit_code(relay: RelayProcess, tmp_path: Path) -> None:
    """status --ready ends with 0 in silence, and with 1 and a sentence where nothing serves."""
    done = cli("status", "--ready", "--data-dir", relay.data_dir)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = cli("status", "--ready", "--data-dir", tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)


def test_values_are_completed_from_the_relay(relay: RelayProcess) -> None:
    """Addresses and actors are those of the running relay; without one there is nothing."""
    address = relay.create_mailbox()

    def completed(words: str) -> str:
        asked = {"_RELAY_COMPLETE": "bash_complete", "COMP_WORDS": words}
        return cli(env={**asked, "COMP_CWORD": str(len(words.split(" ")) - 1)}).stdout.decode()

    data = f"--data-dir {relay.data_dir}"
    assert f"plain,{address}\n" in completed(f"relay mailbox show {data} {address[:5]}")
    assert completed(f"relay tail {data} --actor clai") == "plain,claimer\n"
    assert completed("relay tail --data-dir /nowhere --actor clai").strip() == ""


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/relay"),
        ("zsh", ".zfunc/_relay"),
        ("fish", ".config/fish/completions/relay.fish"),
    ],
)
def test_completion_is_installed_where_the_shell_looks(
    shell: str, place: str, tmp_path: Path
) -> None:
    """The script is written, by name or for $SHELL, and nothing else is touched."""
    env = {
        "HOME": str(tmp_path),
        "SHELL": f"/bin/{shell}",
        "XDG_DATA_HOME": "",
        "XDG_CONFIG_HOME": "",
    }
    for arguments in ((shell,), ()):
        done = cli("--install-completion", *arguments, env=env)
        assert done.returncode == 0, done.stderr
        assert str(tmp_path / place) in done.stdout.decode()
    assert f"_RELAY_COMPLETE={shell}_complete" in (tmp_path / place).read_text()
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [tmp_path / place]
    unknown = cli("--install-completion", env={**env, "SHELL": "/bin/rc"})
    assert unknown.returncode == 2
