"""A collector under a real supervisor, and `relay collect` as a process."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from actors import collector
from relay.db.pool import Pool
from relay.lifecycle.batching import Adaptive, Fixed
from relay.lifecycle.budget import Budget
from relay.lifecycle.letters import Letters
from relay.lifecycle.token_mailer import TokenMailer
from tests.actors.running import running
from tests.cli.command import RELAY, environment
from tests.eventually import eventually_sync
from tests.lifecycle.checker import accepts

KEY = bytes.fromhex("cafebabe" * 8)


class OneKey:
    """As much of a keyring as a collector looks at."""

    signing = (KEY,)


def collecting(
    pool: Pool,
    *,
    law: type[Adaptive] | type[Fixed] = Adaptive,
    limit: int = 10,
    timeout: float = 5.0,
    budget: Budget | None = None,
    templates: Path | None = None,
    sweep_every: float = 60.0,
    **wiring: Any,
) -> AbstractAsyncContextManager[Any]:
    """Run a collector until the block ends; by default nothing is found by sweeping."""
    letters = Letters(
        sender="no-reply@shop.example", base="https://shop.example", directory=templates
    )
    return running(
        collector.run,
        mailer=TokenMailer(pool, letters, limit, timeout, budget),
        batching=partial(law, limit, timeout),
        keyring=OneKey(),
        sweep_every=sweep_every,
        **wiring,
    )


async def mailed(pool: Pool) -> list[str]:
    """Whom letters are queued for (or were sent to), in the order of queueing."""
    rows = await pool.fetch("SELECT recipient FROM relay.outbound_messages ORDER BY id")
    return [row[0] for row in rows]


class Collector(subprocess.Popen[bytes]):
    """`relay collect`; its lines on `stdout`, its log in `log`."""

    def __init__(self, dsn: str, *arguments: str, **settings: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="relay-test-")
        self.log_file = Path(self.folder.name) / "log"
        variables = {
            "RELAY_DATABASE__URL": dsn,
            "RELAY_SECRET_KEY": KEY.hex(),
            "RELAY_DATA_DIR": self.folder.name,
        } | {f"RELAY_COLLECTOR__{name.upper()}": value for name, value in settings.items()}
        with self.log_file.open("wb") as log:
            super().__init__(
                [*RELAY, "collect", *arguments],
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
            )

    def listens(self) -> None:
        """Wait until it is woken by what is inserted from now on."""
        self.logs("collector.listening")

    def logs(self, *events: str, seconds: float = 60) -> None:
        """Wait until one of these events is in its log."""

        def seen() -> str:
            ended = self.poll() is not None
            log = self.log
            assert not ended or any(event in log for event in events), log
            return log

        eventually_sync(
            seen,
            f"{' or '.join(events)} is logged",
            until=lambda log: any(event in log for event in events),
            within=seconds,
            every=0.02,
        )

    @property
    def log(self) -> str:
        """What it logged so far."""
        return self.log_file.read_text()

    @property
    def descriptor(self) -> int:
        """The reading end of its output."""
        assert self.stdout is not None
        return self.stdout.fileno()

    def line(self) -> bytes:
        """The next line, read byte by byte: nothing of what follows is taken from the pipe."""
        line = b""
        while not line.endswith(b"\n") and (byte := os.read(self.descriptor, 1)):
            line += byte
        return line

    def rest(self) -> bytes:
        """All that comes until its end."""
        read = b""
        while chunk := os.read(self.descriptor, 1 << 16):
            read += chunk
        return read


@contextmanager
def collect(dsn: str, *arguments: str, **settings: str) -> Iterator[Collector]:
    """Run `relay collect` on a database; killed at the end if it still runs."""
    process = Collector(dsn, *arguments, **settings)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        process.folder.cleanup()


def batches(written: bytes) -> list[list[str]]:
    """The emails of each whole line, each token checked by docs/tokens.md alone."""
    found = []
    for line in written.split(b"\n")[:-1]:
        fields = line.decode().split(",")
        assert len(fields) % 5 == 0
        rows = [fields[at : at + 5] for at in range(0, len(fields), 5)]
        for action, _, _, token, code in rows:
            wanted = {"1": "activate", "2": "recover"}[action]
            assert accepts(KEY, token, code) == wanted
            assert len(code) == 5
            assert code.isdigit()
        found.append([row[1] for row in rows])
    return found
