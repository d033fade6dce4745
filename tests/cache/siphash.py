"""SipHash-2-4 with 128 bits in plain Python, by the paper: the reference of prefix_hashes()."""

_MASK = (1 << 64) - 1


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def siphash_2_4_128(key: bytes, message: bytes) -> bytes:
    """Return the hash, 16 bytes. key: 16 bytes."""
    low, high = (int.from_bytes(key[i : i + 8], "little") for i in (0, 8))
    v0 = low ^ 0x736F6D6570736575
    v1 = high ^ 0x646F72616E646F6D ^ 0xEE
    v2 = low ^ 0x6C7967656E657261
    v3 = high ^ 0x7465646279746573

    def rounds(count: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(count):
            v0, v2 = (v0 + v1) & _MASK, (v2 + v3) & _MASK
            v1, v3 = _rotated(v1, 13) ^ v0, _rotated(v3, 16) ^ v2
            v0 = _rotated(v0, 32)
            v2, v0 = (v2 + v1) & _MASK, (v0 + v3) & _MASK
            v1, v3 = _rotated(v1, 17) ^ v2, _rotated(v3, 21) ^ v0
            v2 = _rotated(v2, 32)

    whole = len(message) // 8 * 8
    last = message[whole:].ljust(7, b"\0") + bytes([len(message) % 256])
    padded = message[:whole] + last
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v3 ^= word
        rounds(2)
        v0 ^= word
    v2 ^= 0xEE
    rounds(4)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= 0xDD
    rounds(4)
    return first.to_bytes(8, "little") + (v0 ^ v1 ^ v2 ^ v3).to_bytes(8, "little")
