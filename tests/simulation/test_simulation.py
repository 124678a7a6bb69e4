"""`relay simulate`: the same seed is the same run, and promises are kept."""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio

from simulation import day, faults
from simulation.around.dns import DANE
from simulation.faults import Fault
from simulation.keys import OWN
from simulation.kind import kind_of
from simulation.network import Network
from simulation.places import DATABASE
from simulation.world import EPOCH, NODE, World

pytestmark = pytest.mark.timeout(300)  # a machine may have much else to do
SHORT = ("--days", "0.003", "--nodes", "2")


def start(seed: int, *more: str, **env: str) -> subprocess.Popen[str]:
    """Begin a simulation, as `relay simulate` does."""
    return subprocess.Popen(
        [sys.executable, "-m", "relay", "simulate", "--seed", str(seed), *more],
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def verdict(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for its end; what its last line says.  Every promise was kept."""
    output, error = process.communicate(timeout=280)
    assert process.returncode == 0, output + error
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def a_seed(**traits: bool) -> int:
    """The first seed of a world that is so."""
    return next(seed for seed in count(1) if traits.items() <= vars(kind_of(seed)).items())


@pytest.fixture(scope="module")
def seventh(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], bytes]:
    """What two processes under different hash seeds say of seed 7, and the one trace of both."""
    folder = tmp_path_factory.mktemp("seventh")
    traces = [folder / "one", folder / "two"]
    runs = [
        start(7, *SHORT, "--trace", str(trace), PYTHONHASHSEED=str(number))
        for number, trace in enumerate(traces)
    ]
    said = [verdict(run) for run in runs]
    assert said[0] == said[1]
    one, two = (trace.read_bytes() for trace in traces)
    assert one == two
    return said[0], one


def test_a_seed_is_the_same_run_each_time(seventh: tuple[dict[str, Any], bytes]) -> None:
    """Two processes under different hash seeds write the same trace, byte for byte, with faults of
    some kinds at work: those that the seed has."""
    said, trace = seventh
    assert len(said["faults"]) > 1
    lines = [json.loads(line) for line in trace.splitlines()]
    assert said["events"] == len(lines)
    events = {line["event"] for line in lines}
    assert {"mail.answered", "message.delivered", "fault.began"} <= events
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)


def test_whom_a_lock_lets_go_is_the_same_each_time(tmp_path: Path) -> None:
    """Three nodes that wait for one row take it in the same order, down to each answer."""
    traces = [tmp_path / "one", tmp_path / "two"]
    for run in [
        start(
            50010, "--days", "0.001", "--nodes", "3", "--faults", "none", "--trace", str(trace),
            PYTHONHASHSEED=str(number), SIMULATION_WHISPERS="1",
        )
        for number, trace in enumerate(traces)
    ]:  # fmt: skip
        verdict(run)
    one, two = (trace.read_bytes() for trace in traces)
    assert b"db.unlocked" in one
    assert one == two


def test_another_seed_is_another_run(tmp_path: Path, seventh: tuple[dict[str, Any], bytes]) -> None:
    """Three seeds have different traces, and all keep every promise."""
    traces = [tmp_path / str(number) for number in range(2)]
    for run in [
        start(seed, *SHORT, "--trace", str(trace)) for seed, trace in enumerate(traces, 11)
    ]:
        verdict(run)
    assert len({seventh[1], *(trace.read_bytes() for trace in traces)}) == 3


Lines = list[dict[str, Any]]

EACH = [
    Fault(40.0, "kill", "n1", lasts=2.0),
    Fault(60.0, "database", lasts=3.0),
    Fault(70.0, "database", how=faults.FROZEN, lasts=5.0),
    Fault(80.0, "stall", lasts=10.0),
    Fault(100.0, "freeze", "n1", lasts=15.0),
    Fault(120.0, "partition", "n1", 15.0, party=DATABASE),
    Fault(140.0, "clock", "n2", lasts=100.0, step=-3600.0),
    Fault(145.0, "cut", "n1", 100.0, faults.HALF_OPEN, share=1.0, amid=0.005, whose="client"),
    Fault(160.0, "doubt", how=faults.WITHIN, whose="collector"),
    Fault(203.0, "doubt", whose="writer"),
    Fault(225.0, "cut", "n2", share=1.0, amid=0.005, whose="client"),
]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """The trace of a world with these faults, one after the other; all promises are kept."""
    trace = tmp_path_factory.mktemp("planned") / "trace"
    options = ("--plan", faults.written(EACH), "--trace", str(trace))
    seed = a_seed(pings=False, often=False)  # who does not ask does not notice
    said = verdict(start(seed, *SHORT, *options, SIMULATION_WHISPERS="1"))
    assert said["faults"] == Counter(fault.kind for fault in EACH)
    return [json.loads(line) for line in trace.read_text().splitlines()]


def during(lines: Lines, kind: str, node: str = "", how: str = "", party: str = "") -> Lines:
    """What was told while a fault was at work, from the line that it began to that it ended."""
    of = {"kind": kind, "of": node, "how": how, "party": party}
    began, ended = (
        number
        for number, line in enumerate(lines)
        if line["event"].startswith("fault.") and of.items() <= line.items()
    )
    return lines[began : ended + 1]


def answers(lines: Lines, host: str) -> Counter[int]:
    """How many answers of the database have come to each connection of a node."""
    return Counter(
        line["fd"]
        for line in lines
        if line["event"] == "db.answered" and line["node"].startswith(f"{host}.")
    )


def test_a_plan_is_what_happens(planned: Lines) -> None:
    """Given faults are done at their times, and no others."""
    began = [(line["t"], line["kind"]) for line in planned if line["event"] == "fault.began"]
    at_once = [each for each in began if each[1] != "cut"]
    assert at_once == [(fault.at, fault.kind) for fault in EACH if fault.kind != "cut"]
    assert len(began) == len(EACH)


def test_who_is_killed_is_started_again(planned: Lines) -> None:
    """As another incarnation, when the fault is over."""
    started = [(line["t"], line["node"]) for line in planned if line["event"] == "node.started"]
    assert {node for _, node in started[:2]} == {"n1.1", "n2.1"}
    assert started[2:] == [(42.0, "n1.2")]
    assert not any(line["node"] == "n1.1" for line in during(planned, "kill", node="n1"))


def test_a_database_that_is_killed_ends_its_connections(planned: Lines) -> None:
    """Who listens on each node loses it."""
    told = during(planned, "database")
    lost = {line["node"] for line in told if line["event"] == "db.listen_lost"}
    assert lost == {"n1.2", "n2.1"}


def test_a_database_that_is_stopped_answers_nobody(planned: Lines) -> None:
    """It is asked, and says nothing before it goes on."""
    told = during(planned, "database", how=faults.FROZEN)
    assert any(line["event"] == "db.begins" for line in told)
    assert not any(line["event"] == "db.answered" and line["t"] < 75.0 for line in told)


def test_a_stall_keeps_answers_from_all(planned: Lines) -> None:
    """What was asked is done, and nobody is told: no connection is asked anything again."""
    told = during(planned, "stall")
    for host in ("n1", "n2"):
        assert set(answers(told, host).values()) == {1}


def test_a_partition_keeps_answers_from_one(planned: Lines) -> None:
    """The same at the node that is parted from the database, and at no other."""
    told = during(planned, "partition", "n1", party=DATABASE)
    assert set(answers(told, "n1").values()) == {1}
    assert max(answers(told, "n2").values()) > 1


def test_who_is_frozen_does_nothing(planned: Lines) -> None:
    """Not a line of the trace is of it, while there are some of the other node."""
    told = [line["node"] for line in during(planned, "freeze", node="n1")]
    assert "n2.1" in told
    assert "n1.2" not in told


def test_a_clock_that_is_off_is_off(planned: Lines) -> None:
    """The ids of what is stored say when that was, by the clock of the node that stored it."""
    told = during(planned, "clock", node="n2")
    off: dict[str, set[float]] = defaultdict(set)
    for line in told:
        if line["event"] == "writer.stored":
            for id_ in line.get("ids", [line.get("id")]):
                by_its_clock = int(id_.replace("-", "")[:12], 16) / 1000 - EPOCH
                off[line["node"]].add(round(by_its_clock - line["t"], -2))
    assert off.pop("n2.1") == {-3600.0}
    assert all(others == {0.0} for others in off.values())


def test_doubt_loses_an_answer(planned: Lines) -> None:
    """One to that actor; the fault is over with it.  What was within a transaction is undone, and
    done again: the letters of a batch go out once."""
    for how, actor in [("", "writer"), (faults.WITHIN, "collector")]:
        told = during(planned, "doubt", how=how)
        assert [line["actor"] for line in told if line["event"] == "db.answer_lost"] == [actor]


def test_a_cut_ends_connections(planned: Lines) -> None:
    """Who speaks to that node then finds out at once."""
    (cut,) = (line["t"] for line in during(planned, "cut", node="n2")[:1])
    said = [line.get("said") for line in planned if cut <= line["t"] < cut + 0.1]
    assert "BrokenResourceError" in said


def test_a_silent_cut_is_heard_of_by_nobody(planned: Lines) -> None:
    """Who speaks to that node then waits for a minute, and gives up."""
    told = during(planned, "cut", "n1", faults.HALF_OPEN)
    gave_up = [line["t"] - told[0]["t"] for line in told if line.get("said") == "TooSlowError"]
    assert any(59.9 < each < 60.1 for each in gave_up)


SERVERS = [
    Fault(40.0, "failover", lasts=3.0, away=25.0),
    Fault(72.0, "disk", how=faults.LOG, whose="writer", lasts=2.0),
    Fault(120.0, "disk", how=faults.SYNC, whose="writer", lasts=2.0),
    Fault(150.0, "disk", lasts=40.0),
    Fault(200.0, "failover", how=faults.BESIDE, lasts=20.0, away=20.0),
]


def test_the_database_fails_over_and_its_disk_fails(tmp_path: Path) -> None:
    """A standby is promoted with commits in doubt, the log fails at a commit, the disk is full, and
    a promoted server has the old one beside it: promises are kept, each time in the same way."""
    traces = [tmp_path / "one", tmp_path / "two"]
    plan = ("--faults", "failover,disk", "--plan", faults.written(SERVERS))
    runs = [
        start(2, *SHORT, *plan, "--trace", str(trace), PYTHONHASHSEED=str(number))
        for number, trace in enumerate(traces)
    ]
    said = [verdict(run) for run in runs]
    assert said[0]["faults"]["failover"] == 2
    if "disk" not in said[0]["faults"]:
        pytest.skip("no file system can be mounted here")
    one, two = (trace.read_bytes() for trace in traces)
    assert one == two
    lines = [json.loads(line) for line in one.splitlines()]
    timelines = {line["timeline"] for line in lines if line["event"] == "db.promoted"}
    assert timelines == {2, 3}
    assert [line["actor"] for line in lines if line["event"] == "db.log_failed"] == ["writer"] * 2
    assert b"No space left on device" in one
    doubtful = {"client", "program", "maker", "pusher"}
    assert any(line.get("answer") == "doubt" for line in lines if line["node"][:-1] in doubtful)


AROUND = [
    Fault(30.0, "peer", lasts=110.0),
    Fault(40.0, "partition", "n1", 20.0, party="mx2"),
    Fault(60.0, "partition", "n2", 20.0, party="dns"),
    Fault(90.0, "partition", "n1", 30.0, party="hooks.example"),
    Fault(100.0, "partition", "n2", 80.0, party="client1"),
    Fault(130.0, "cut", "n1", 100.0, faults.HALF_OPEN, share=1.0),
    Fault(136.0, "cut", "n2", 100.0, faults.HALF_OPEN, after_bytes=40),
    Fault(150.0, "freeze", "n1", 150.0, faults.OVERTAKEN, whose="sender", answers=1),
]


def test_partitions_and_half_open_ends_between_all(tmp_path: Path) -> None:
    """Mail that was submitted and sent goes to the exchangers of its domain, by TLS where they have
    it, with nodes cut off from them, from the DNS, from clients and from who is told: promises are
    kept, each time in the same way, down to the size of each piece."""
    traces = [tmp_path / "one", tmp_path / "two"]
    runs = [
        start(
            a_seed(direct=True), *SHORT, "--plan", faults.written(AROUND), "--trace", str(trace),
            PYTHONHASHSEED=h, SIMULATION_WHISPERS="1",
        )
        for trace, h in zip(traces, "12", strict=True)
    ]  # fmt: skip
    for run in runs:
        verdict(run)
    one, two = (trace.read_bytes() for trace in traces)
    assert one == two
    lines = [json.loads(line) for line in one.splitlines()]
    delivered = {
        (line["node"], line["key"], line["recipient"].partition("@")[2])
        for line in lines
        if line["event"] == "message.delivered"
    }
    assert {("mx1", "", "one.example"), ("mx3", OWN, "three.example")} <= delivered
    assert {key for _, key, domain in delivered if domain in DANE} == {OWN}
    assert any(line.get("step") == "tls" for line in lines), "somebody has interfered with TLS"
    answers = {line["answer"] for line in lines if line["event"] == "submission.answered"}
    assert "kept" in answers
    assert sum(line["event"] == "fault.ended" for line in lines) == len(AROUND)
    for node, other in [("n1", "mx2"), ("n1", "hooks.example"), ("n2", "client1")]:
        kept, link = during(lines, "partition", node, party=other), sorted({node, other})
        assert any(line.get("link") == link for line in lines)
        assert not any(line.get("link") == link for line in kept), "nothing passes"
    (cut,) = (line for line in lines if line["event"] == "net.cut")
    began = next(line for line in lines if line["t"] > 140.0 and line.get("how") == "half-open")
    assert (cut["silent"], cut["t"]) == (True, began["t"])
    assert "n2" in cut["link"]
    odd = [line for line in lines if line["event"] == "upstream.misbehaves"]
    assert odd
    assert all(line in during(lines, "peer") for line in odd)
    # Whichever had an answer under way.
    (node,) = (
        line["of"] for line in lines if line["event"] == "fault.began" and line["kind"] == "freeze"
    )
    frozen = during(lines, "freeze", node, faults.OVERTAKEN)
    assert 60.0 < frozen[-1]["t"] - frozen[0]["t"] <= 151.0
    assert {line["node"] for line in frozen} >= {"n1.1", "n2.1"} - {f"{node}.1"}
    assert f"{node}.1" not in {line["node"] for line in frozen}


def test_a_log_that_fails_under_a_long_answer(tmp_path: Path) -> None:
    """A statement whose answer is longer than what is looked at in a socket, as that which reads
    mail to be parsed, does not stop the simulation for ever."""
    plan = [Fault(30.0, "disk", how=faults.LOG, whose="summariser", lasts=3.0)]
    options = ("--days", "0.0006", "--nodes", "3", "--faults", "disk")
    verdict(start(3, *options, "--plan", faults.written(plan)))


def test_a_silent_connection_is_closed_by_who_has_it() -> None:
    """Of a half-open connection it is known who has not found out."""

    world = World(1)
    network = Network(world)

    async def live() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(network.run)
            (listener,) = network.listen("n1", 25)
            NODE.set("client1")
            client = await network.open_tcp_stream("n1", 25)
            await trio.lowlevel.wait_readable(listener)
            sock, _ = network.accept(listener)
            server = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
            await client.send_all(b"hello")
            assert await server.receive_some() == b"hello"
            assert network.cut(["n1"], silent=True) == 1
            await client.send_all(b"is anybody there?")
            with trio.move_on_after(1000) as waited:
                await server.receive_some()
            assert waited.cancelled_caught
            assert network.held(["n1"], world.now() - 900) == [("n1", "client1")]
            assert network.held(["n1"], world.now() - 1100) == []
            await server.aclose()
            await trio.sleep(1)
            assert network.held(["n1"], world.now() - 900) == []
            assert network.held(["client1"], world.now() - 900) == [("client1", "n1")]
            await client.aclose()
            nursery.cancel_scope.cancel()
        listener.close()

    trio.run(live, clock=world.clock)


def test_the_simulated_dns_says_what_is_not_there() -> None:
    """It is read by the relay's own reader: exchangers, an address, no data, no such name; and of
    those names that are signed, that they are."""
    from relay.dns import wire
    from relay.dns.questions import Answer, Question, Status
    from simulation.around.dns import answer

    def heard(name: str, kind: str) -> Answer:
        question = Question(name, kind)  # type: ignore[arg-type]
        query = wire.query(question, 7)
        return wire.read(query, answer(query), question).answer

    def asked(name: str, kind: str) -> tuple[Status, tuple[str, ...]]:
        said = heard(name, kind)
        return said.status, said.records

    assert asked("two.example", "MX") == (
        Status.FOUND,
        ("10 mx2.example", "20 mx3.example"),
    )
    assert asked("mx1.example", "A") == (Status.FOUND, ("198.51.100.1",))
    assert asked("mx1.example", "AAAA")[0] is Status.NO_DATA
    assert asked("three.example", "MX")[0] is Status.NO_DATA
    assert asked("_mta-sts.one.example", "TXT")[0] is Status.NXDOMAIN
    signed = [("", "NS"), ("two.example", "MX"), ("mx3.example", "A"), ("mx3.example", "AAAA")]
    assert all(heard(*each).secure for each in [*signed, ("_25._tcp.mx3.example", "TLSA")])
    assert not any(heard(name, "MX").secure for name in ("one.example", "three.example"))


def test_every_kind_of_fault_is_seen_at_work() -> None:
    """It is in one of the plans above, whose tests say what it does."""
    assert {fault.kind for fault in (*EACH, *SERVERS, *AROUND)} == set(faults.KINDS)


def test_a_day_has_rushes_and_a_night() -> None:
    """Busy seconds pass as they do in the first hour, slower at night; none is lost between."""
    assert day.after(10.0, 60.0) == 70.0
    assert day.after(14 * day.HOUR, 60.0) > 15 * day.HOUR
    for began in (0.0, 2000.0, 2 * day.HOUR, 17.9 * day.HOUR, day.DAY - 1, 3 * day.DAY + 5):
        at = began
        for _ in range(40):
            later = day.after(at, 25.0)
            assert later > at
            at = later
        assert at == pytest.approx(day.after(began, 1000.0))
