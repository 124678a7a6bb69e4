"""`relay collect`: the lifecycle's tokens as lines on standard output, for a sender of one's own.

Needs no running relay: database and keys come from the settings and the data directory.  A relay
that runs shares the tokens with it; of the embedded database it uses that relay's server, else it
starts one for as long as it runs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import click

from relay.cli import db, exits, options
from relay.cli.exits import Failure

GRACE = 5.0  # s after a signal, for the batch in hand
START_TIMEOUT = 60.0  # s for a relay that is starting


@click.command()
@options.config
@options.data_dir
@click.option("--follow", is_flag=True, help="Go on with what comes, until a signal.")
@click.option(
    "--adaptive",
    is_flag=True,
    help="Write at once while little happens, in growing batches under load.",
)
def collect(config: Path | None, data_dir: Path, follow: bool, adaptive: bool) -> int:
    """Write tokens that are to be mailed to standard output, a batch a line.

    Rows are action,email,login,token,code, joined by commas; action 1 is an activation, 2 a
    password recovery. A batch goes out when it is full, or when its time has passed since the
    first wake-up (RELAY_COLLECTOR__BATCH_LIMIT, RELAY_COLLECTOR__BATCH_TIMEOUT); what is queued at
    the start goes out at once. A line without its line feed is unfinished: its rows come again.

    Ends with 0 when all is written (without --follow), on SIGTERM, and when the reader goes away.
    The log goes to stderr.
    """
    from relay.datadir import DataDir
    from relay.settings import load

    settings = load(config=config)
    signing_key = _signing_key(data_dir, settings.secret_key)
    received: list[int] = []
    # An external database's timeline, which the relay on this directory has met and keeps.
    known = DataDir(data_dir).timeline_file if settings.database.url else None

    async def work(dsn: str) -> None:
        await _collect(
            settings.database.direct_url or dsn, known, signing_key, config, received,
            follow=follow, adaptive=adaptive,
        )  # fmt: skip

    def interrupt(number: int, _: FrameType | None) -> None:
        received.append(number)
        raise KeyboardInterrupt

    # While the embedded server starts or stops; otherwise the signal receiver of _collect.
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        if not settings.database.url:
            _await_relay(data_dir)
        db.with_database(config, data_dir, work, make=False)
    except KeyboardInterrupt:
        if signal.SIGTERM not in received:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return exits.INTERRUPTED if signal.SIGINT in received else exits.OK


def _await_relay(data_dir: Path) -> None:
    """Let a relay that is just starting on this directory become ready: its server is ours too."""
    from relay.datadir import DataDir

    data = DataDir(data_dir)
    until = time.monotonic() + START_TIMEOUT
    while data.is_held() and data.read_run() is None and time.monotonic() < until:
        time.sleep(0.1)


def _signing_key(data_dir: Path, configured: str) -> Callable[[], bytes]:
    """Return what reads the key of now: a relay may change its own while we run."""
    from relay.datadir import DataDir
    from relay.errors import ConfigError

    data = DataDir(data_dir)
    if not configured:
        try:
            data.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"The data directory {data.path} cannot be used ({error.strerror}); name another "
                "with --data-dir or RELAY_DATA_DIR."
            ) from error
    return lambda: data.secret_keys(configured)[0]


async def _collect(
    dsn: str,
    known: Path | None,
    signing_key: Callable[[], bytes],
    config: Path | None,
    received: list[int],
    *,
    follow: bool,
    adaptive: bool,
) -> None:
    import structlog
    import trio

    from relay import log
    from relay.db.hosts import Hosts
    from relay.db.migrate import check
    from relay.lifecycle.batching import Adaptive, Fixed
    from relay.lifecycle.budget import Budget
    from relay.lifecycle.collect import Collect
    from relay.lifecycle.pipe import Pipe
    from relay.settings import load

    settings = load(config=config)
    log.configure(settings.log.level, stream=sys.stderr, readable=sys.stderr.isatty())
    structlog.contextvars.bind_contextvars(actor="collector")
    if (await check(dsn)).pending:
        raise Failure("The database's schema is older than this relay: run `relay db migrate`.")
    chosen = settings.collector
    budget = None
    if chosen.monthly_budget is not None and chosen.price_per_thousand is not None:
        budget = Budget(chosen.monthly_budget, chosen.price_per_thousand)
    run = Collect(
        dsn,
        Pipe(sys.stdout.fileno()),
        (Adaptive if adaptive else Fixed)(chosen.batch_limit, chosen.batch_timeout),
        signing_key,
        timeout=chosen.batch_timeout,
        budget=budget,
        hosts=Hosts(known, keep=False),
    )

    async def obey_signals(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                if received:
                    os._exit(1)  # the second: not even the batch in hand
                received.append(number)
                run.stop()
                patience.deadline = trio.current_time() + GRACE

    with trio.CancelScope() as patience:
        errors: list[Exception] = []
        async with trio.open_nursery() as nursery:
            await nursery.start(obey_signals)
            try:
                await (run.follow() if follow else run.drain())
            except OSError as error:
                errors.append(Failure(f"Standard output cannot be written: {error.strerror}."))
            except Exception as error:  # raised below, as itself and not in a group
                errors.append(error)
            nursery.cancel_scope.cancel()
        if errors:
            raise errors[0]
