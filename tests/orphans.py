"""What outlives the process of its tests is ended: by a shell that waits for that to end.

Relays and servers that tests start are sessions of their own, so that nothing but their tests ends
them; where those are killed, or have no time left to stop what they have started, nothing would.
"""

from __future__ import annotations

import functools
import os
import signal

# Whoever has a number by then is asked first, by a word of its command line, whether it is meant.
_SCRIPT = """
exec >/dev/null 2>&1
left=$(cat)
printf '%s\\n' "$left" | while read -r pid sign word; do
    grep -aqF -- "$word" "/proc/$pid/cmdline" && kill -s "$sign" "$pid"
done
"""


def end_after_us(pid: int, word: str, sign: signal.Signals = signal.SIGTERM) -> None:
    """Send a process this signal when this one has ended, if it is there then.

    `word`: what stands in its command line, and in no stranger's.
    """
    os.write(_shell(), f"{pid} {sign.name.removeprefix('SIG')} {word}\n".encode())


@functools.cache
def _shell() -> int:
    """The shell, by what it reads: nobody waits for it, and it for nothing but us."""
    read, write = os.pipe()
    into = (os.POSIX_SPAWN_DUP2, read, 0)
    os.posix_spawnp("sh", ("sh", "-c", _SCRIPT), os.environ, file_actions=[into], setsid=True)
    os.close(read)
    return write
