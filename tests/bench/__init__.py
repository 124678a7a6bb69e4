"""Measurements: `python -m tests.bench`."""

from __future__ import annotations

from typing import Any


def kept(ratio: dict[str, Any]) -> bool:
    """Whether what is promised of a figure (`required`: at least; `at_most`) holds."""
    low, high = ratio.get("required"), ratio.get("at_most")
    return (low is None or ratio["value"] >= low) and (high is None or ratio["value"] <= high)
