"""The calls of fuzz.py to the prefix tree, chosen by bytes from atheris (libFuzzer). libFuzzer's
own flags apply.

To reproduce a crash, pass the file saved by libFuzzer. Needs `pip install atheris`.
"""

import random
import sys

import atheris

with atheris.instrument_imports(include=["fuzz"]):
    from fuzz import Fuzzer

_CALLS = 400


class BytesDraw(random.Random):
    """A source of choices reading from bytes. After the last byte it returns the smallest valid
    value."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data = atheris.FuzzedDataProvider(data)

    @property
    def left(self) -> int:
        return int(self._data.remaining_bytes())

    def random(self) -> float:
        return float(self._data.ConsumeIntInRange(0, 2**16 - 1)) / 2**16

    def getrandbits(self, bits: int) -> int:
        return int(self._data.ConsumeIntInRange(0, 2**bits - 1))


def calls(data: bytes) -> None:
    """Make at most _CALLS calls to the prefix tree, chosen by the bytes `data`. Raises Finding."""
    draw = BytesDraw(data)
    fuzzer = Fuzzer(draw)
    while draw.left and fuzzer.calls < _CALLS:
        fuzzer.step()
    fuzzer.tree.check_integrity()


if __name__ == "__main__":
    atheris.Setup(sys.argv, calls)
    atheris.Fuzz()
