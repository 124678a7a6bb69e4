"""`relay keys`: the relay's own signing and encryption keys."""

from __future__ import annotations

from pathlib import Path

import click

from relay.cli import exits, options, output
from relay.cli.client import Api

TIMEOUT = 120.0  # seconds; every stored secret is sealed anew


@click.group()
def keys() -> None:
    """The relay's own signing and encryption keys."""


@keys.command()
@options.data_dir
@options.as_json
def rotate(data_dir: Path, as_json: bool) -> int:
    """Make new signing and encryption keys, while everything runs.

    What was signed before still verifies, and stored passwords and private keys (DKIM) are sealed
    anew. Cut off anywhere, run it again: it finishes what it began. Keys given by the settings are
    yours to change: put the new one behind the old on every node, then first, then run this, then
    drop the old.

    Exit code 1 when a stored secret is left that no key opens.
    """
    api = Api.find(data_dir)
    done = api.call("POST", "/api/v1/keyring/rotate", timeout=TIMEOUT).json()
    if as_json:
        output.document(done)
    else:
        output.fields(
            [
                ("signing key", "new" if done["new_signing_key"] else "unchanged"),
                ("encryption key", "new" if done["new_encryption_key"] else "unchanged"),
                ("secrets sealed anew", str(done["resealed"])),
                ("old encryption keys", "dropped" if done["old_keys_dropped"] else "kept"),
                ("unreadable", (str(done["unreadable"] or ""), "red")),
            ]
        )
    return exits.REFUSED if done["unreadable"] else exits.OK
