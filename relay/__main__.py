"""The program `relay`, and `python -m relay`: the command line on Linux, elsewhere one sentence.

Before anything else is loaded, for much of it does not even load elsewhere: locks, limits and the
embedded server's account are asked of a Unix, pipes and peers of Linux.
"""

from __future__ import annotations

import sys
from typing import NoReturn

ELSEWHERE = (
    "Relay runs on Linux only; start it on a Linux machine, in a virtual one or in a container."
)
_UNFIT = 78  # EX_CONFIG, as `relay.cli.exits` has it


def main(platform: str = sys.platform) -> NoReturn:
    """Run the command line and exit; `platform` as in `sys`."""
    if platform != "linux":
        sys.stderr.write(f"relay: {ELSEWHERE}\n")
        sys.exit(_UNFIT)
    from relay.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
