"""Runs of pytest with the plug-in in them."""

from __future__ import annotations

import sys

import pytest

SENDS = """
import smtplib
import pytest

def put(server, to, text):
    with smtplib.SMTP(server.host, server.port) as smtp:
        smtp.login(server.user, server.password)
        smtp.sendmail("a@shop.example", [to], f"Subject: Welcome\\n\\n{text}")
"""
"""What sends mail, before a test of such a run."""

RUNS = """sh -c 'mkdir -p "$RELAY_DATA_DIR/run"; cd "$RELAY_DATA_DIR/run";
    echo "{}" >relay.new; mv relay.new relay.json; exec sleep 100'"""
"""A command that is taken for a relay; `{}` is how it describes itself."""


def run_pytest(inner: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run the tests that were made there."""
    return inner.runpytest_subprocess("-p", "no:cacheprovider", *PLUGIN, *arguments)


def _is_installed() -> bool:
    from importlib.metadata import entry_points

    if sys.version_info >= (3, 10):
        points = entry_points(group="pytest11")
    else:
        points = entry_points().get("pytest11", ())
    return any(point.value == "relay_client.pytest_plugin" for point in points)


PLUGIN = () if _is_installed() else ("-p", "relay_client.pytest_plugin")
"""Has pytest take the plug-in, where no installed one says that it is there."""


def ways(inner: pytest.Pytester) -> list[tuple[str, ...]]:
    """Return the options of a run in one process, and in several where that can be."""
    xdist = inner._request.config.pluginmanager.hasplugin("xdist")
    return [(), ("-n", "2")] if xdist else [()]
