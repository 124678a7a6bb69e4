"""The child process that signs: `python -m relay.outbound.signing.worker`.

It reads requests from stdin and answers them on stdout, in order, until stdin ends; so it is gone
soon after its parent is, however that died.  `relay.outbound.signing.processes` is the parent's
side.  It sees keys and digests, nothing of a mail; keys come by the pipe and are kept in memory.

Wire, big-endian:
    request   kind u8, count u32
              1 key: its id (16 bytes), and `count` bytes of what `dkim.dump` makes of it
              2 forget: the key of the id that follows
              3 sign: `count` times the id of a key and 32 bytes of digest
    answer    to 3 alone: `count` times the length u16 of a signature, and that
The first answer is `READY`, to no request: the child has started.

Fails: it ends with a traceback, which nobody reads, on what the parent never says.
"""

from __future__ import annotations

import os
import resource
import struct

from relay.outbound.signing.dkim import PrivateKey, load, sign

REQUEST = struct.Struct(">BI")
SIGNED = struct.Struct(">16s32s")
LENGTH = struct.Struct(">H")
ID = 16
KEY, FORGET, SIGN = 1, 2, 3
READY = b"\0"


def main() -> None:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # there are keys in it
    requests = os.fdopen(0, "rb", buffering=1 << 16)
    keys: dict[bytes, PrivateKey] = {}
    os.write(1, READY)
    while len(head := requests.read(REQUEST.size)) == REQUEST.size:
        kind, count = REQUEST.unpack(head)
        if kind == SIGN:
            wanted = requests.read(count * SIGNED.size)
            made = [sign(keys[key], digest) for key, digest in SIGNED.iter_unpack(wanted)]
            _write(b"".join(LENGTH.pack(len(one)) + one for one in made))
        elif kind == KEY:
            key = requests.read(ID)
            keys[key] = load(requests.read(count).decode())
        else:
            keys.pop(requests.read(ID), None)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
