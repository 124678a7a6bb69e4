"""The programs that README.md shows, by the name in the comment before each."""

from __future__ import annotations

import re
from pathlib import Path

_README = (Path(__file__).parents[1] / "README.md").read_text("utf-8")

PROGRAMS: dict[str, str] = dict(re.findall(r"<!-- (\S+) -->\n```\w+\n(.*?)```", _README, re.DOTALL))
