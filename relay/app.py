"""`relay up`: settings → resources → tree → run → exit code.

Promises, in the order of a start: the settings are checked, the data directory is locked,
the ports are bound (a fault up to here is a `ConfigError`, status 78, and nothing has been
touched), then the tree runs; `run/relay.json` appears when every actor is ready and goes
at a clean stop.

Under systemd the relay says when it is ready, that its loop turns, and that it stops
(`relay.systemd`).

Signals: the first SIGTERM or SIGINT drains, the second cuts every deadline to zero, the
third exits at once; SIGHUP reads the settings again and applies the log level, and takes up the
certificate of the ports and the traffic rules as they are now.

Exit codes: 0 after a clean stop, 70 when supervision gave up or something was stuck, 78
for a configuration error found while running (a schema newer than this program).
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import re
import resource
import signal
import socket
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path

import structlog
import trio

from actors.resources import Resources
from actors.tree import Parts, build_tree, wire
from relay import log as logging
from relay import metrics, net
from relay.cpu_turns import ask_for_short_turns
from relay.crypto import hash_token, new_admin_token
from relay.datadir import DataDir
from relay.db.cluster import Cluster
from relay.db.embedded import Embedded
from relay.db.hosts import Hosts
from relay.db.listen import Hub
from relay.db.pool import Pool
from relay.devices.noise import KeyPair
from relay.errors import ConfigError, Occupied, innermost
from relay.keyring import Keyring
from relay.log import get_logger
from relay.memory import return_large_blocks, settle_garbage
from relay.outbound.shaping.file import ShapingFile
from relay.ports.certificate import Certificate
from relay.ports.connections import bound, endpoint
from relay.settings import (
    Settings,
    Source,
    chosen,
    ignored,
    load,
    parse_endpoint,
    parse_floor,
)
from relay.storage import Space, measure, usual_floor
from relay.systemd import ServiceManager
from supervisor import (
    BLOCKED_LONG,
    BackingOff,
    Context,
    DeadLettered,
    Event,
    Exited,
    GaveUp,
    GaveUpOn,
    LoopBlocked,
    Paused,
    Restarting,
    Resumed,
    Stalled,
    Stuck,
    Supervisor,
    SupervisorSpec,
    Unstoppable,
)

EXIT_CLEAN = 0
EXIT_SOFTWARE = 70
EXIT_CONFIG = 78
EXIT_AT_ONCE = 1

BLOCKED_EXIT = 60.0  # seconds of one blocking step after which the process ends itself

ALIVE_EVERY = 10.0  # seconds at most between two signs of life to the service manager

PORTS = (
    *("http", "smtp", "lmtp", "submission", "submission_tls", "pop3", "pop3_tls"),
    *("devices_push", "devices_receive"),
)
"""What `relay.json` says of where this relay is reached."""

TOLD = (*PORTS, "smtp_processes", "pid")
"""What of `relay.json` the log says, too."""

_TURN = 0.0005  # s on the CPU at once, where others want it, too; in exchange it comes soon

Greet = Callable[[Mapping[str, object]], None]
"""Says to a person that the relay is ready; given what `relay.json` says."""

log = get_logger()


def up(
    settings: Settings,
    data: DataDir,
    *,
    only: frozenset[str] | None = None,
    config: Path | None = None,
    origins: Mapping[str, Source] | None = None,
    greet: Greet | None = None,
    build: Callable[[Parts], SupervisorSpec] = build_tree,
    cluster: Cluster | None = None,
) -> int:
    """Run the relay in the foreground until a signal, and return the exit code.

    `data` is held by this process (`DataDir.prepare`), and released at the end.  `origins`: where
    settings were set (`relay.settings.sources`), to be shown.  `greet` is called
    once, in a thread, when the relay is ready.  `build` places the parts.  `cluster`: the embedded
    database's, if making it was begun already.
    """
    raise_open_files()
    return_large_blocks()
    ask_for_short_turns(_TURN)  # the database and the parser inherit it
    try:
        # Unset secrets are made before anything is accepted that would need them.
        keyring = Keyring(data, settings.secret_key, settings.encryption_keys)
        certificate = settings.smtp.certificate and Certificate.load(*settings.smtp.certificate)
        shaping = ShapingFile.load(settings.outbound.shaping)
        serves_devices = only is None or "devices" in only
        device_key = None
        if serves_devices:
            device_key = KeyPair.from_private(data.device_key(settings.devices.key))
        with (
            _Listening(
                "RELAY_SMTP__BIND",
                settings.smtp.bind,
                share=settings.smtp.share_port,
                wanted=only is None or "ingest" in only,
            ) as smtp,
            _UnixListening(
                "RELAY_SMTP__LMTP",
                settings.smtp.lmtp,
                wanted=bool(settings.smtp.lmtp) and (only is None or "lmtp" in only),
            ) as lmtp,
            _Listening(
                "RELAY_SUBMISSION__BIND",
                settings.submission.bind,
                wanted=bool(settings.submission.bind) and (only is None or "submission" in only),
                instead="bind" not in settings.submission.model_fields_set,
            ) as submission,
            _Listening(
                "RELAY_SUBMISSION__TLS_BIND",
                settings.submission.tls_bind,
                wanted=bool(settings.submission.tls_bind)
                and (only is None or "submission" in only),
            ) as submission_tls,
            _Listening(
                "RELAY_POP3__BIND",
                settings.pop3.bind,
                wanted=bool(settings.pop3.bind) and (only is None or "pop3" in only),
            ) as pop3,
            _Listening(
                "RELAY_POP3__TLS_BIND",
                settings.pop3.tls_bind,
                wanted=bool(settings.pop3.tls_bind) and (only is None or "pop3" in only),
            ) as pop3_tls,
            _Listening(
                "RELAY_HTTP__BIND", settings.http.bind, wanted=only is None or "control" in only
            ) as http,
            _Listening(
                "RELAY_DEVICES__PUSH_BIND", settings.devices.push_bind, wanted=serves_devices
            ) as push,
            _Listening(
                "RELAY_DEVICES__RECEIVE_BIND", settings.devices.receive_bind, wanted=serves_devices
            ) as receive,
        ):
            logging.configure(settings.log.level, readable=sys.stdout.isatty())
            if submission.moved:
                log.warning("relay.port_taken", address=submission.address, setting=submission.name)
            if names := ignored():
                log.info("relay.ignored_variables", names=names, why="a Kubernetes Service's")
            ports = Ports(
                smtp.sockets,
                lmtp.sockets,
                submission.sockets,
                submission_tls.sockets,
                pop3.sockets,
                pop3_tls.sockets,
                http.sockets,
                push.sockets,
                receive.sockets,
            )
            return trio.run(
                _run,
                settings,
                data,
                keyring,
                device_key,
                certificate,
                shaping,
                only,
                config,
                origins or {},
                ports,
                greet,
                build,
                cluster,
            )
    finally:
        if cluster is not None:
            cluster.abandon()  # if it was never waited for
        data.release()


def raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: each session needs one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Listening:
    """The listening sockets of one setting, bound before the tree starts.

    They belong to the process and not to an actor, so that a restart of the actor keeps
    port and backlog, and a port in use is said before anything runs.  None are bound where
    the role that serves them is not `wanted`: another relay of this machine may have it.
    """

    def __init__(
        self,
        name: str,
        address: str,
        *,
        share: bool = False,
        wanted: bool = True,
        instead: bool = False,
    ) -> None:
        """`instead`: whether a free port is taken where this one is another program's.

        So it is with a default that came later than those who run several relays.
        """
        self.name, self.address, self.share, self.wanted = name, address, share, wanted
        self.instead = instead
        self.moved = False
        """Whether a free port was taken instead."""
        self.sockets: tuple[socket.socket, ...] = ()

    def __enter__(self) -> _Listening:
        if not self.wanted:
            return self
        host, port = parse_endpoint(self.address)
        try:
            self.sockets = net.listen(host, port, share=self.share)
        except OSError as error:
            if not self.instead or error.errno != errno.EADDRINUSE:
                raise self._refused(error) from error
            self.moved = True
            try:
                self.sockets = net.listen(host, 0, share=self.share)
            except OSError as again:
                raise self._refused(again) from again
        return self

    def _refused(self, error: OSError) -> ConfigError:
        kind = Occupied if error.errno == errno.EADDRINUSE else ConfigError
        return kind(
            f"{self.name} is {self.address!r}, which cannot be listened on "
            f"({error.strerror}); choose a free address and port, or port 0."
        )

    def __exit__(self, *_: object) -> None:
        for listener in self.sockets:
            listener.close()


_ANOTHERS = "another program listens on it"


class _UnixListening:
    """The Unix socket of one setting, bound before the tree starts, and removed at the end.

    Only its owner and their group may connect, from the first instant.  It is made beside and moved
    into its place, so whoever connects meanwhile reaches the old one or this; one that a relay left
    which was killed is replaced, anything else there is an error and is left alone.
    """

    def __init__(self, name: str, path: str, *, wanted: bool) -> None:
        self.name, self.path, self.wanted = name, path, wanted
        self.sockets: tuple[socket.socket, ...] = ()
        self._made: os.stat_result | None = None

    def __enter__(self) -> _UnixListening:
        if not self.wanted:
            return self
        fault = self._in_the_way()
        made = f"{self.path}.{os.getpid()}"
        listener = socket.socket(socket.AF_UNIX)
        if not fault:
            before = os.umask(0o117)
            try:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(made)  # of one that was killed
                listener.bind(made)
                listener.listen(1024)
                listener.setblocking(False)
                self._made = os.lstat(made)
                os.rename(made, self.path)
            except OSError as error:
                fault = error.strerror or str(error)
                with contextlib.suppress(OSError):
                    os.unlink(made)
            finally:
                os.umask(before)
        if fault:
            listener.close()
            raise (Occupied if fault == _ANOTHERS else ConfigError)(
                f"{self.name} is {self.path!r}, which cannot be listened on ({fault}); choose a "
                "path in a directory that is there and writable."
            )
        self.sockets = (listener,)
        return self

    def _in_the_way(self) -> str:
        """Return what is wrong with what is there; empty: nothing is, or nobody listens on it."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return ""  # binding says what is wrong with the directory
        if not stat.S_ISSOCK(found.st_mode):
            return "what is there is no socket"
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(self.path)
            except ConnectionRefusedError:
                return ""
            except OSError as error:
                if error.errno != errno.EAGAIN:  # its queue is full
                    return error.strerror or str(error)
        return _ANOTHERS

    def __exit__(self, *_: object) -> None:
        for listener in self.sockets:
            listener.close()
            with contextlib.suppress(OSError):
                if self._made is not None and os.path.samestat(os.lstat(self.path), self._made):
                    os.unlink(self.path)


@dataclasses.dataclass(frozen=True)
class Ports:
    """The sockets that listen, by what is spoken there; none where no role here serves it."""

    smtp: tuple[socket.socket, ...]
    lmtp: tuple[socket.socket, ...]
    submission: tuple[socket.socket, ...]
    submission_tls: tuple[socket.socket, ...]
    pop3: tuple[socket.socket, ...]
    pop3_tls: tuple[socket.socket, ...]
    http: tuple[socket.socket, ...]
    push: tuple[socket.socket, ...]
    receive: tuple[socket.socket, ...]


def _page_url(settings: Settings, http_sockets: tuple[socket.socket, ...]) -> str:
    """Return where letters say that our pages are; empty when nobody knows."""
    if settings.http.link_base:
        return settings.http.link_base
    if http_sockets:
        return f"http://{endpoint(http_sockets[0])}"
    # Another relay serves them, by the same settings.
    return "" if parse_endpoint(settings.http.bind)[1] == 0 else f"http://{settings.http.bind}"


async def _run(
    settings: Settings,
    data: DataDir,
    keyring: Keyring,
    device_key: KeyPair | None,
    certificate: Certificate | None,
    shaping: ShapingFile,
    only: frozenset[str] | None,
    config: Path | None,
    origins: Mapping[str, Source],
    ports: Ports,
    greet: Greet | None,
    build: Callable[[Parts], SupervisorSpec],
    cluster: Cluster | None,
) -> int:
    admin_token = settings.admin_token or new_admin_token()
    server = None
    if not settings.database.url:
        connections = settings.database_connections
        server = Embedded(cluster or Cluster(data.postgres), connections=connections)
    dsn = settings.database.url if server is None else server.dsn
    pool = Pool(
        dsn,
        size=settings.database.pool_size,
        prepare=settings.database.prepare,
        hosts=Hosts(data.timeline_file if server is None else None),
        call_timeout=settings.database.call_timeout,
    )
    min_free = settings.storage.min_free
    space = Space(partial(measure, data.path), parse_floor(min_free) if min_free else usual_floor)
    space.look()  # before anything is taken
    supervisor = Supervisor(
        wrap=with_log_context, on_blocked=log_blocked, blocked_exit=BLOCKED_EXIT
    )
    parts = wire(
        settings,
        Resources(
            supervisor=supervisor,
            server=server,
            dsn=dsn,
            listen_dsn=settings.database.direct_url or dsn,
            pool=pool,
            hub=Hub(),
            smtp_sockets=ports.smtp,
            lmtp_sockets=ports.lmtp,
            submission_sockets=ports.submission,
            submission_tls_sockets=ports.submission_tls,
            pop3_sockets=ports.pop3,
            pop3_tls_sockets=ports.pop3_tls,
            http_sockets=ports.http,
            push_sockets=ports.push,
            receive_sockets=ports.receive,
            device_key=device_key,
            data_dir=data.path,
            admin_token_hash=hash_token(admin_token),
            keyring=keyring,
            logs=logging.ring,
            page_url=_page_url(settings, ports.http),
            space=space,
            certificate=certificate,
            shaping=shaping,
            origins=origins,
        ),
        only=only,
    )
    tree = build(parts)
    entries: dict[str, object] = {"pid": os.getpid()}
    if ports.http:
        entries["http"] = f"http://{endpoint(ports.http[0])}"
    if ports.lmtp:
        entries["lmtp"] = settings.smtp.lmtp
    mail = {
        "smtp": ports.smtp,
        "submission": ports.submission,
        "submission_tls": ports.submission_tls,
        "pop3": ports.pop3,
        "pop3_tls": ports.pop3_tls,
    }
    entries |= {name: endpoint(sockets[0]) for name, sockets in mail.items() if sockets}
    entries["bound"] = {name: [*map(bound, sockets)] for name, sockets in mail.items() if sockets}
    if ports.smtp:
        entries["smtp_processes"] = settings.smtp_processes
    if device_key is not None:
        entries["devices_push"] = endpoint(ports.push[0])
        entries["devices_receive"] = endpoint(ports.receive[0])
        entries["devices_key"] = device_key.public.hex()
    entries |= {
        "database_url": dsn,
        "admin_token": admin_token,
        "settings": chosen(settings),
    }
    code = EXIT_CLEAN
    manager = ServiceManager.from_environment()
    gathered = _gather_metrics(supervisor, pool)
    async with trio.open_nursery() as nursery:
        await nursery.start(_obey_signals, supervisor, config, certificate, shaping, manager)
        await nursery.start(_narrate, supervisor, data, entries, manager, greet)
        nursery.start_soon(space.watch)
        if certificate is not None:
            nursery.start_soon(certificate.watch)
        if manager.listens:
            nursery.start_soon(_show_life, manager)
        try:
            await supervisor.run(tree)
        except ConfigError as error:
            code = _complain(EXIT_CONFIG, str(error))
        except GaveUp as error:
            code = _complain(EXIT_SOFTWARE, f"Supervision gave up: {error}.")
        except Unstoppable as error:
            _complain(EXIT_SOFTWARE, f"Stopped without some actors: {error}.")
            os._exit(EXIT_SOFTWARE)
        nursery.cancel_scope.cancel()
    for collector in gathered:
        metrics.registry.unregister(collector)
    data.remove_run()
    log.info("relay.stopped", code=code)
    return code


def _gather_metrics(supervisor: Supervisor, pool: Pool) -> list[metrics.Collector]:
    """Let each scrape read the supervision tree and the connection pool."""

    def actors() -> metrics.Rows:
        pending = [supervisor.tree()]
        while pending:
            node = pending.pop()
            pending += node.children
            yield (
                node.name,
                {
                    "relay_actor_running": float(node.state in {"running", "paused"}),
                    "relay_actor_restarts": float(node.restarts),
                    "relay_actor_mailbox_depth": float(node.mailbox_depth),
                },
            )

    def connections() -> metrics.Rows:
        now = pool.statistics()
        for state in ("in_use", "idle", "waiting"):
            yield state, {"relay_database_connections": float(getattr(now, state))}

    return [
        metrics.gather(
            {
                "relay_actor_running": "1 while the actor is ready, paused included.",
                "relay_actor_restarts": "Restarts of the actor since this start.",
                "relay_actor_mailbox_depth": "Messages that wait in the actor's mailbox.",
            },
            "actor",
            actors,
        ),
        metrics.gather(
            {"relay_database_connections": "Connections of the pool, and tasks that want one."},
            "state",
            connections,
        ),
    ]


def _complain(code: int, sentence: str) -> int:
    log.error("relay.failed", reason=sentence)
    sys.stderr.write(f"relay: {sentence}\n")
    return code


async def with_log_context(context: Context, actor: Callable[[], Awaitable[None]]) -> None:
    """Run an actor with its name on every line it logs."""
    structlog.contextvars.bind_contextvars(actor=context.name, incarnation=context.incarnation)
    await actor()


def log_blocked(event: LoopBlocked) -> None:
    """Say at once, from the watch-dog's thread, what blocks the loop.

    A short pause is a warning of one line (a busy machine has some), a long one an error with the
    whole stack.
    """
    seconds = round(event.seconds, 3)
    if event.seconds < BLOCKED_LONG:
        log.warning("loop.blocked", task=event.task, seconds=seconds, where=_innermost(event.stack))
    else:
        log.error("loop.blocked", task=event.task, seconds=seconds, stack=event.stack)


_FRAME = re.compile(r'^  File "(?:.*/)?([^"/]+)", line (\d+), in (.+)$', re.MULTILINE)


def _innermost(stack: str, frames: int = 3) -> str:
    """Return the last frames of a formatted stack in a line, the innermost first."""
    found = _FRAME.findall(stack)[-frames:]
    return " < ".join(f"{name} ({file}:{line})" for file, line, name in reversed(found))


async def _obey_signals(
    supervisor: Supervisor,
    config: Path | None,
    certificate: Certificate | None,
    shaping: ShapingFile,
    manager: ServiceManager,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    stops = 0
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP:
                _reload(config)
                shaping.reload()
                if certificate is not None:
                    certificate.reload()
                continue
            stops += 1
            name = signal.Signals(number).name
            log.info("relay.stopping", signal=name, request=stops)
            manager.stopping(f"Stopping on {name}: what is in hand is finished.")
            if stops > 2:
                os._exit(EXIT_AT_ONCE)
            supervisor.shutdown()


def _reload(config: Path | None) -> None:
    try:
        level = load(config=config).log.level
    except ConfigError as error:
        log.error("relay.reload_refused", reason=str(error))  # noqa: TRY400 - says it all
        return
    logging.configure(level, readable=sys.stdout.isatty())
    log.info("relay.reloaded", log_level=level)


async def _narrate(
    supervisor: Supervisor,
    data: DataDir,
    entries: dict[str, object],
    manager: ServiceManager,
    greet: Greet | None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Log what supervision does, and publish `relay.json` once the whole tree has started.

    That is when every actor is ready, but for those of a group that nobody waits for.
    """
    announced = False
    with supervisor.subscribe(1024) as events:
        async with trio.open_nursery() as nursery:
            task_status.started()
            async for event in events:
                _log_event(event)
                if not announced and supervisor.tree().state in {"running", "paused"}:
                    announced = True
                    settle_garbage()
                    data.write_run(entries)
                    log.info(
                        "relay.ready",
                        **{k: entries[k] for k in TOLD if k in entries},
                    )
                    served = [f"{k} {entries[k]}" for k in PORTS if k in entries]
                    manager.ready(f"Serving {', '.join(served) or 'its roles'}.")
                    if greet is not None:
                        nursery.start_soon(_greet, greet, entries)


async def _greet(greet: Greet, entries: dict[str, object]) -> None:
    # In a thread, for it may ask this very relay for something; and no reason to end it.
    try:
        await trio.to_thread.run_sync(greet, entries, abandon_on_cancel=True)
    except Exception as error:
        log.warning("relay.not_greeted", error=str(error))


async def _show_life(manager: ServiceManager) -> None:
    """Tell the service manager, twice within its patience, that this loop still turns."""
    every = ALIVE_EVERY if manager.watchdog is None else min(ALIVE_EVERY, manager.watchdog / 2)
    while True:
        manager.alive(3 * ALIVE_EVERY)
        await trio.sleep(every)


_GRAVE = (Stalled, Stuck, GaveUpOn, DeadLettered)
_NOTABLE = (BackingOff, Restarting, Paused, Resumed)


def _log_event(event: Event) -> None:
    if isinstance(event, LoopBlocked):
        return  # already said by the watch-dog's thread, while it was still blocked
    details = {
        field.name: value
        for field in dataclasses.fields(event)
        if field.name not in {"at", "name"} and (value := getattr(event, field.name)) is not None
    }
    level = "debug"
    if isinstance(event, _GRAVE):
        level = "error"
    elif isinstance(event, _NOTABLE):
        level = "info"
    if isinstance(event, Exited) and event.reason not in {"finished", "drained", "cancelled"}:
        level = "error"
        if event.error is not None:
            details["error"] = innermost(event.error)
    getattr(log, level)(f"supervisor.{event.kind}", actor=event.name, **details)
