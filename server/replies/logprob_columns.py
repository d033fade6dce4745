"""A completion's logprobs in OpenAI's shape, by columns, as the tokens come.

One answer, one thread. Invariant: they are kept as JSON, a fifth of the memory of objects.
"""

from typing import Any

import msgspec

_NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_encode = msgspec.json.Encoder().encode


class LogprobColumns:
    def __init__(self) -> None:
        self._columns = (bytearray(), bytearray(), bytearray(), bytearray())

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._columns))

    def add(
        self,
        text: str,
        logprob: float | None,
        alternatives: dict[str, float] | None,
        offset: int,
    ) -> None:
        """Add a token. alternatives: by their texts. offset: of the token's text, in letters."""
        values: tuple[Any, ...] = (text, logprob, alternatives, offset)
        for column, value in zip(self._columns, values, strict=True):
            column += _encode(value)
            column += b","

    def json(self) -> msgspec.Raw:
        """Return the columns as a JSON object of lists."""
        lists = [
            b'"%b":[' % name.encode() + column.removesuffix(b",") + b"]"
            for name, column in zip(_NAMES, self._columns, strict=True)
        ]
        return msgspec.Raw(b"{%b}" % b",".join(lists))
