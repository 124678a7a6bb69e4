"""The outbox of pushers: what it keeps survives, in order, whoever dies and however many use it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from relay.devices.outbox import Never, NotNow, Outbox

A, B = b"a" * 32, b"b" * 32


class Line:
    """A relay as an outbox sees it: takes blobs, or does what the test says."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, bytes, float | None]] = []
        self.refusals: dict[bytes, Exception] = {}

    def __call__(self, to: bytes, envelope: bytes, ttl: float | None) -> None:
        if envelope in self.refusals:
            raise self.refusals[envelope]
        self.taken.append((to, envelope, ttl))

    @property
    def envelopes(self) -> list[bytes]:
        """What it took, in order."""
        return [envelope for _, envelope, _ in self.taken]


def kept(directory: Path, *envelopes: bytes, to: bytes = A) -> Outbox:
    """An outbox with these in it."""
    outbox = Outbox(directory)
    for envelope in envelopes:
        outbox.keep(to, envelope)
    return outbox


def test_what_was_kept_is_pushed_in_order_byte_for_byte(tmp_path):
    """Any bytes, line feeds too; each once; then nothing is left."""
    envelopes = [b"", b"\n\n", bytes(range(256)), os.urandom(65_482), b"again", b"again"]
    outbox, line = kept(tmp_path / "deep" / "out", *envelopes), Line()
    done = outbox.replay(line)
    assert line.envelopes == envelopes
    assert (len(done.pushed), done.waiting, done.refused, done.trouble) == (6, 0, {}, None)
    assert outbox.replay(line).pushed == []
    assert (tmp_path / "deep" / "out").stat().st_mode & 0o777 == 0o700


def test_without_a_relay_all_of_it_waits(tmp_path):
    """The first failure of the network ends the replay; nothing is lost, or out of order."""
    outbox, line = kept(tmp_path, b"1", b"2", b"3"), Line()
    line.refusals[b"2"] = ConnectionRefusedError(111, "Connection refused")
    done = outbox.replay(line)
    assert (line.envelopes, done.waiting, done.trouble) == ([b"1"], 2, "Connection refused")
    line.refusals.clear()
    outbox.keep(A, b"4")
    assert outbox.replay(line).waiting == 0
    assert line.envelopes == [b"1", b"2", b"3", b"4"]


def test_a_recipient_that_is_refused_for_now_holds_up_itself_alone(tmp_path):
    """Its later blobs wait behind, others go; a relay that takes nothing ends the replay."""
    outbox, line = kept(tmp_path, b"a1", b"a2"), Line()
    outbox.keep(B, b"b1")
    outbox.keep(A, b"a3")
    line.refusals[b"a1"] = NotNow("inbox full")
    done = outbox.replay(line)
    assert (line.envelopes, done.waiting, done.trouble) == ([b"b1"], 3, "inbox full")
    line.refusals = {b"a2": NotNow("unavailable", everybody=True)}
    outbox.keep(B, b"b2")
    assert outbox.replay(line).waiting == 3
    line.refusals = {}
    assert outbox.replay(line).waiting == 0
    assert line.envelopes == [b"b1", b"a1", b"a2", b"a3", b"b2"]


def test_what_is_refused_for_good_is_set_aside_with_the_reason(tmp_path):
    """It holds nobody up, and is there to be looked at."""
    outbox, line = kept(tmp_path, b"1", b"2"), Line()
    line.refusals[b"1"] = Never("too large")
    first = outbox.numbers()[0]
    done = outbox.replay(line)
    assert (line.envelopes, done.refused, done.waiting) == ([b"2"], {first: "too large"}, 0)
    assert outbox.refusal(first) == "too large"
    assert (tmp_path / "refused" / f"{first}.blob").read_bytes().endswith(b"\n1")


def test_a_time_to_live_goes_on_while_a_blob_waits(tmp_path):
    """What is left of it is told to the relay; what has none left is set aside."""
    now = 1000.0
    outbox, line = Outbox(tmp_path, lambda: now), Line()
    outbox.keep(A, b"long", 100.0)
    outbox.keep(A, b"brief", 10.0)
    outbox.keep(A, b"usual")
    now = 1030.0
    done = outbox.replay(line)
    assert line.taken == [(A, b"long", 70.0), (A, b"usual", None)]
    assert list(done.refused.values()) == ["it expired before a relay took it"]


def test_what_is_no_blob_is_set_aside(tmp_path):
    """A file that somebody else put there, or cut short, does not stop the others."""
    outbox, line = kept(tmp_path, b"1"), Line()
    (tmp_path / f"{5:020}.blob").write_bytes(b"what is this")
    (tmp_path / f"{6:020}.blob").write_bytes(b'{"to": "ab", "ttl": null, "kept_at": 0}\nx')
    (tmp_path / "README").write_text("not one of ours")
    assert len(outbox.replay(line).refused) == 2
    assert line.envelopes == [b"1"]


HEAD = '{"to": "' + A.hex() + '", "ttl": %s, "kept_at": %s}\nx'


def test_nothing_that_lies_in_an_outbox_stops_it(tmp_path):
    """Heads that no parser takes, times that are none, links, directories, names too long."""
    outbox, line = kept(tmp_path, b"1"), Line()
    heads = ["[" * 200_000, HEAD % ("null", "9" * 400), HEAD % ("null", "9" * 5000)]
    heads += [HEAD % ("NaN", "0"), HEAD % ("null", "1e999"), HEAD % ("1e999", "0")]
    for number, head in enumerate(heads):
        (tmp_path / f"{number:020}.blob").write_text(head)
    (tmp_path / f"{10:020}.blob").symlink_to(tmp_path / "nowhere")
    (tmp_path / f"{11:020}.blob").mkdir()
    (tmp_path / f"{12:021}.blob").write_text(HEAD % ("null", "0"))
    (tmp_path / f"{9:019}.blob").write_text(HEAD % ("null", "0"))
    done = outbox.replay(line)
    assert line.envelopes == [b"1"]
    assert (len(done.refused), done.waiting, done.trouble) == (len(heads) + 2, 0, None)
    assert all(outbox.refusal(number) for number in done.refused)
    outbox.keep(A, b"2")
    assert outbox.replay(line).waiting == 0
    assert line.envelopes == [b"1", b"2"]


def test_nothing_is_kept_under_a_name_that_is_never_pushed(tmp_path):
    """Where somebody took the last number, keeping fails until a replay has set that aside."""
    outbox, line = kept(tmp_path), Line()
    (tmp_path / f"{10**20 - 1}.blob").write_text("")
    with pytest.raises(OSError, match="no number"):
        outbox.keep(A, b"1")
    outbox.replay(line)
    outbox.keep(A, b"2")
    assert outbox.replay(line).waiting == 0
    assert line.envelopes == [b"2"]


def test_what_cannot_be_set_aside_holds_up_itself_alone(tmp_path):
    """The others are pushed, and what is the matter is said."""
    outbox, line = kept(tmp_path, b"1", b"2"), Line()
    first = outbox.numbers()[0]
    line.refusals[b"1"] = Never("too large")
    (tmp_path / "refused" / f"{first}.blob" / "in the way").mkdir(parents=True)
    done = outbox.replay(line)
    assert (line.envelopes, done.waiting, done.refused) == ([b"2"], 1, {})
    assert first in str(done.trouble)


def test_nothing_is_left_of_setting_aside_where_it_was_broken_off(tmp_path):
    """Whoever sets something aside next clears what the one that died had begun."""
    outbox, line = kept(tmp_path, b"1"), Line()
    (tmp_path / "refused").mkdir()
    (tmp_path / "refused" / f"{7:020}.tmp").write_bytes(b"too la")
    line.refusals[b"1"] = Never("too large")
    assert len(outbox.replay(line).refused) == 1
    assert not list((tmp_path / "refused").glob("*.tmp"))


def test_a_clock_that_goes_back_changes_no_order(tmp_path):
    """A number is above every one that waits."""
    ahead = time.time_ns() + 10**18
    outbox, line = Outbox(tmp_path), Line()
    outbox.keep(A, b"1")
    (tmp_path / f"{outbox.numbers()[0]}.blob").rename(tmp_path / f"{ahead:020}.blob")
    outbox.keep(A, b"2")
    outbox.replay(line)
    assert line.envelopes == [b"1", b"2"]


def test_only_one_replays_and_it_takes_what_others_keep_meanwhile(tmp_path):
    """Two at once: each blob once, in order; who finds the other at work after its patience says
    so."""
    outbox, line = kept(tmp_path, b"1"), Line()
    under_way, go_on = threading.Event(), threading.Event()

    def slowly(to: bytes, envelope: bytes, ttl: float | None) -> None:
        under_way.set()
        assert go_on.wait(20)
        line(to, envelope, ttl)

    first = threading.Thread(target=outbox.replay, args=(slowly,))
    first.start()
    assert under_way.wait(20)
    other = Outbox(tmp_path)
    other.keep(A, b"2")
    done = other.replay(line, patience=0.1)
    assert (done.pushed, done.waiting) == ([], 2)
    assert "another process" in str(done.trouble)
    go_on.set()
    first.join(20)
    assert line.envelopes == [b"1", b"2"]


KEEPER = """
import sys
from pathlib import Path
from relay.devices.outbox import Outbox
outbox = Outbox(Path(sys.argv[1]))
number = 0
while True:
    outbox.keep(bytes(31) + bytes([int(sys.argv[2])]), b"%d" % number)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.parametrize("seed", range(3))
def test_kill_at_any_moment_loses_nothing_that_was_kept(tmp_path, seed):
    """Two processes keep at once and are killed: all they were told of is there, whole and in
    order, and the next one goes on."""
    told: list[list[int]] = []
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", KEEPER, str(tmp_path), str(who)], stdout=subprocess.PIPE
        )
        for who in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        for _ in range(20 + 7 * seed):
            assert process.stdout.readline()
    for process in processes:
        process.send_signal(signal.SIGKILL)
        out, _ = process.communicate(timeout=20)
        told.append([int(line) for line in out.splitlines(keepends=True) if line.endswith(b"\n")])
    outbox, line = Outbox(tmp_path), Line()
    outbox.keep(A, b"after")
    assert not list(tmp_path.glob("*.tmp"))
    assert outbox.replay(line).waiting == 0
    for who in range(2):
        mine = [int(envelope) for to, envelope, _ in line.taken if to[-1] == who]
        assert mine == list(range(len(mine)))
        assert len(mine) > max(told[who], default=19 + 7 * seed)
    assert line.envelopes[-1] == b"after"
