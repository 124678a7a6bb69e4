"""`relay token`: signed tokens, checked offline.

Needs no running relay and no database: keys come from the settings, else from the data directory.
Whether a token is still unused and in time, only the database knows.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click

from relay.cli import exits, options, output
from relay.datadir import DataDir
from relay.errors import ConfigError

_TOKEN = re.compile(r"[A-Za-z0-9_-]{86}", re.ASCII)


class _TakesTokens(click.Command):
    """A command whose arguments may begin with a hyphen, as one signed token in 32 does."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, taking whatever has a token's shape for an argument."""
        if "--" in args:
            return super().parse_args(ctx, args)
        tokens = [each for each in args if _TOKEN.fullmatch(each)]
        rest = [each for each in args if not _TOKEN.fullmatch(each)]
        return super().parse_args(ctx, [*rest, "--", *tokens] if tokens else args)


@click.group()
def token() -> None:
    """Signed tokens of account mail."""


@token.command(cls=_TakesTokens)
@click.argument("token", metavar="TOKEN")
@click.option("--code", metavar="C", help="The five digits beside a recovery link.")
@options.config
@options.data_dir
@options.as_json
def verify(token: str, code: str | None, config: Path | None, data_dir: Path, as_json: bool) -> int:
    """Check the signature of TOKEN, offline; a - reads it from standard input.

    A recovery needs its code.  Exit code 0: a key of this relay signed it; 1: none did.  Whether
    it was used or has expired is not looked up.
    """
    from relay.lifecycle import tokens

    if token == "-":  # noqa: S105 - not a secret
        token = sys.stdin.readline().strip()
    verified = tokens.verify(signing_keys(config, data_dir), token, code)
    action = None if verified is None else verified.action.label
    if as_json:
        shown: dict[str, Any] = {"valid": verified is not None, "action": action}
        output.document(shown)
    else:
        output.say("not valid" if action is None else f"valid: {action}")
    return exits.REFUSED if verified is None else exits.OK


def signing_keys(config: Path | None, data_dir: Path) -> tuple[bytes, ...]:
    """Return the signing keys, newest first; unlike a start, make none."""
    from relay.settings import load

    configured = load(config=config).secret_key
    data = DataDir(data_dir)
    if not configured and not (data.path / "secret_key").exists():
        raise ConfigError(
            f"There is no signing key: RELAY_SECRET_KEY is not set, and no relay has run on "
            f"{data.path} (--data-dir or RELAY_DATA_DIR names another)."
        )
    return data.secret_keys(configured)
