"""An independent reading of docs/tokens.md, for the tests: shares no code with the relay.

    base64url without padding of secret[32] || HMAC-SHA256(key, message)[32], 86 characters;
    message = "/activate" || secret (41 bytes) or "/recover" || secret || code (45 bytes).

HMAC is written out from RFC 2104, base64url from RFC 4648, so that a fault in a library call of
the relay's cannot be repeated here.
"""

import hashlib

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def decode(token: str) -> bytes:
    """Return the 64 bytes of a token; ValueError for what is none."""
    if len(token) != 86:
        raise ValueError("a token has 86 characters")
    bits = 0
    for character in token:
        bits = bits << 6 | ALPHABET.index(character)
    if bits & 0b1111:  # 86 * 6 = 516: four bits are none of the 64 bytes'
        raise ValueError("the spare bits are not zero")
    return (bits >> 4).to_bytes(64, "big")


def encode(raw: bytes) -> str:
    """Return 64 bytes as 86 characters."""
    bits = int.from_bytes(raw, "big") << 4
    return "".join(ALPHABET[bits >> 6 * place & 63] for place in reversed(range(86)))


def hmac_sha256(key: bytes, message: bytes) -> bytes:
    """HMAC (RFC 2104) for keys of up to 64 bytes."""
    padded = key.ljust(64, b"\x00")
    inner = hashlib.sha256(bytes(b ^ 0x36 for b in padded) + message).digest()
    return hashlib.sha256(bytes(b ^ 0x5C for b in padded) + inner).digest()


def accepts(key: bytes, token: str, code: str | None = None) -> str | None:
    """Return "activate" or "recover" if `key` signed `token` so, else None."""
    try:
        raw = decode(token)
    except ValueError:
        return None
    secret, signature = raw[:32], raw[32:]
    if hmac_sha256(key, b"/activate" + secret) == signature:
        return "activate"
    if code is not None and hmac_sha256(key, b"/recover" + secret + code.encode()) == signature:
        return "recover"
    return None
