"""The command `relay`: the program itself, and what operates it from outside.

Each file of this package is a command or a group of them, and is loaded when that is run
(`relay.cli.lazy`).  Commands import what is slow to load (Trio, the relay itself) only when they
run, so that `--help`, completion and the small commands answer at once: what each may load is held
by tests/cli/test_imports.py.

Promises: results on stdout, everything else on stderr; a failure is one sentence (and
perhaps a command that does it otherwise, on a line of its own) and an exit code
(`relay.cli.exits`), never a traceback unless RELAY_LOG__LEVEL is debug; an interrupt ends with 130;
a reader that goes away ends us quietly.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

import click

from relay import __version__
from relay.cli import completion, exits
from relay.cli.lazy import LazyGroup
from relay.errors import ConfigError, DatabaseUnavailable, Occupied

EPILOG = f"""\
\b
{exits.HELP}

\b
Completion: relay --install-completion, in bash, zsh or fish; or for this shell alone,
eval "$(_RELAY_COMPLETE=bash_source relay)"."""


_COMMANDS = {
    "up": "Run the relay until a signal.",
    "demo": "Send a real message through a relay of its own, and show what happened.",
    "status": "Show the supervision tree: state, restarts, mailbox depth, last event.",
    "actor": "An actor or a group of them: restart, pause, resume, sweep, report.",
    "open": "Open the operator's page in a browser, signed in by a one-time link.",
    "tail": "Show the newest 20,000 lines of the log, of this start; with -f, live.",
    "mailbox": "Expiring addresses.",
    "messages": "The mail in a mailbox, or in all of them.",
    "send": "Send a message; prints the id of each recipient's, once it is queued durably.",
    "queue": "The outbound queue: count it, look at messages, retry, cancel, hold, flush, pause.",
    "sender": "Upstream identities: whose mail goes through which server.",
    "dkim": "Keys that sign what leaves (DKIM).",
    "domain": "What a domain publishes for its mail.",
    "suppression": "Addresses that get no mail.",
    "webhook": "Who is told what becomes of outbound mail and of accounts.",
    "account": "Accounts: make, look at, suspend, mail again.",
    "device": "The device inbox: make keys, put blobs, receive them.",
    "token": "Signed tokens of account mail.",
    "key": "API keys.",
    "keys": "The relay's own signing and encryption keys.",
    "tls": "Certificates for the relay's own ports.",
    "db": "The database: migrate, check, connect.",
    "config": "The settings: show and check them.",
    "collect": "Write tokens that are to be mailed to standard output, a batch a line.",
    "simulate": "Live through a day of several relays, simulated, and judge their promises.",
    "doctor": "Check the machine, the settings, the data directory, the database and the relay.",
    "mcp": "Serve tools for AI agents over stdio (Model Context Protocol).",
}


@click.group(
    cls=LazyGroup,
    elsewhere={
        name: (f"relay.cli.{name}:{'open_' if name == 'open' else name}", told)
        for name, told in _COMMANDS.items()
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=EPILOG,
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option(
    "--install-completion",
    type=click.Choice(["this", *completion.SHELLS]),
    is_flag=False,
    flag_value="this",
    is_eager=True,
    expose_value=False,
    callback=completion.install,
    metavar="[SHELL]",
    help="Let this shell, or the one named (bash, zsh, fish), complete the command.",
)
def cli() -> None:
    """One supervised program that owns a product's mail.

    `relay up` runs it; the other commands find the running relay through its data directory.
    """


def main() -> NoReturn:
    """Run the command line and exit."""
    # Names and subjects may hold what the locale cannot spell; show that rather than fail.
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    code = _run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = exits.PIPE
    if code == exits.PIPE:
        # The interpreter flushes once more on its way out, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run() -> int:
    if instruction := os.environ.get("_RELAY_COMPLETE"):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "relay", "_RELAY_COMPLETE", instruction)
    try:
        with cli.make_context("relay", sys.argv[1:]) as context:
            result = cli.invoke(context)
        return result if isinstance(result, int) else exits.OK
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.ClickException as wrong:
        wrong.show()
        return wrong.exit_code
    except (KeyboardInterrupt, click.Abort):
        return exits.INTERRUPTED
    except BrokenPipeError:
        return exits.PIPE
    except exits.Failure as failure:
        return _say(failure, failure.code)
    except Occupied as error:
        code = _say(error, exits.CONFIG)
        if error.command is not None:
            with contextlib.suppress(OSError):
                click.echo(f"Beside it, on free ports:\n  {error.command}", err=True)
        return code
    except ConfigError as error:
        return _say(error, exits.CONFIG)
    except DatabaseUnavailable as error:
        return _say(error, exits.UNAVAILABLE)
    except Exception as error:  # the boundary of the program: everything becomes a sentence
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return _say(
            error,
            exits.INTERNAL,
            f"Internal failure: {what} (RELAY_LOG__LEVEL=debug shows where).",
        )


def _say(error: Exception, code: int, sentence: str | None = None) -> int:
    if os.environ.get("RELAY_LOG__LEVEL", "").strip().lower() == "debug":
        import traceback

        traceback.print_exception(error)
    text = " ".join((sentence or str(error)).split())  # what a library said may have lines
    with contextlib.suppress(OSError):  # nobody reads stderr: the exit code still tells
        click.echo(f"relay: {text}", err=True)
    return code
