"""What both clients say in the same words: cases that the other client's tests take, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CASES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "cases.json").read_text("utf-8")
)
