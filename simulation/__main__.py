"""`python -m simulation SEED …`, the process that `relay simulate` starts.

The order in which Python walks over a set of texts is no matter of a run, as tests that set
PYTHONHASHSEED see.  Where nobody does, this starts itself again with the seed's own, before
anything is loaded that takes long: should it matter once, the same seed is the same run still.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys


def main() -> int:
    """Begin again if need be, then simulate."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("seed", type=int, nargs="?", default=0)
    options, _ = parser.parse_known_args()
    # Until there is something to take away; and no traceback of whatever is being loaded.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.environ.get("PYTHONHASHSEED", "random") == "random":
        hashes = str(options.seed % 4_294_967_295)
        environment = os.environ | {"PYTHONHASHSEED": hashes}
        os.execve(sys.executable, [sys.executable, "-m", "simulation", *sys.argv[1:]], environment)  # noqa: S606 - ourselves
    from simulation import command

    return command.main()


if __name__ == "__main__":
    sys.exit(main())
