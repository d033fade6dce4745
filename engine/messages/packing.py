"""One message to MessagePack and back. Pure.

Not part of the messages themselves: whoever moves or keeps them as bytes imports it by name.
"""

from collections.abc import Callable
from typing import Any, TypeAlias, get_origin

import msgspec
import numpy as np

BodyReader: TypeAlias = Callable[[msgspec.Raw | bytes], Any]


def packer() -> msgspec.msgpack.Encoder:
    """Of any message. Its encode() raises msgspec's errors of what is no plain value."""
    return msgspec.msgpack.Encoder(enc_hook=_plain_value)


def reader_of(kind: type) -> BodyReader:
    """Of messages of that kind. It raises msgspec's errors of what is none."""
    return msgspec.msgpack.Decoder(kind, dec_hook=_built_value).decode


def _plain_value(value: Any) -> Any:
    """What msgspec does not know: arrays, and numbers that came out of one."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} is no plain value")


def _built_value(kind: Any, value: Any) -> Any:
    if (get_origin(kind) or kind) is not np.ndarray:
        raise NotImplementedError(f"{kind} is no plain value")
    dtype, shape, data = value
    # Copied: an array over the frame's bytes could not be written to.
    return np.frombuffer(data, dtype).reshape(shape).copy()
