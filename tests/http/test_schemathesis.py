"""Every call as `/openapi.json` describes it, made by schemathesis with values right and wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.relay_process import RelayProcess

CONFIG = Path(__file__).with_name("schemathesis.toml")


@pytest.mark.timeout(400)  # more than a hundred calls, and others may run beside it
def test_every_call_keeps_to_its_description(tmp_path: Path) -> None:
    """No answer breaks its schema, its statuses, its media type or its need of a credential."""
    # A relay of its own: it is paused, its keys are rotated and revoked.
    with RelayProcess(tmp_path / "relay") as relay:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("st"), "--config-file", CONFIG, "run",
                f"{relay.run['http']}/openapi.json",
                "--header", f"Authorization: Bearer {relay.run['admin_token']}",
                "--no-color",
            ],
            capture_output=True,
            text=True,
            timeout=360,
            cwd=tmp_path,  # its cache stays out of the tree
            check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2_000:]
    assert "API Operations" in done.stdout
