"""A trace of requests with block hashes, read into plain objects.

Owns the file format: one JSON object a line with `timestamp` (ms), `input_length`, `output_length`
(tokens) and `hash_ids`. `hash_ids` has one id for each block of the prompt. Equal ids mean equal
prefixes up to and including the block; the last block may be partial. `session_id`, `agent` and
`stop` are present if known. Knows nothing of tokens or caches.
"""

import gzip
import json
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tasuki.bench.errors import ReplayError

_BLOCK_SIZES = (16, 64, 512)


@dataclass(frozen=True)
class TraceRequest:
    """One request of a trace. block_ids: ids of the prompt's blocks, [blocks] int64; the last block
    is partial if prompt_tokens ends inside it."""

    timestamp_ms: int
    prompt_tokens: int
    answer_tokens: int
    block_ids: NDArray[np.int64]
    conversation: tuple[int, int] | None
    stop: str


@dataclass(frozen=True)
class Trace:
    """A trace's requests in order of arrival. block_tokens: length in tokens of every block except
    a partial last one."""

    name: str
    block_tokens: int
    requests: tuple[TraceRequest, ...]


def load_trace(path: Path, limit: int | None = None) -> Trace:
    """Read a trace file: .jsonl, .jsonl.gz or .jsonl.zst; blank lines are left out. limit: largest
    number of requests to read. Raises ReplayError naming the line."""
    requests: list[TraceRequest] = []
    try:
        with _lines(path) as lines:
            for number, line in enumerate(lines, start=1):
                if limit is not None and len(requests) >= limit:
                    break
                if line.strip():
                    requests.append(_request(line, f"{path}:{number}"))
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ReplayError(f"{path}: cannot be read ({error}); give a trace file") from error
    if not requests:
        raise ReplayError(f"{path}: holds no request; give a trace with one JSON object a line")
    return Trace(path.name, _block_tokens(requests), tuple(requests))


@contextmanager
def _lines(path: Path) -> Iterator[IO[str]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield lines
    elif path.suffix == ".zst":
        if not path.exists():
            raise ReplayError(f"{path}: no such file; give a trace file")
        program = shutil.which("zstd")
        if program is None:
            raise ReplayError(f"{path}: install the program zstd, or decompress the file first")
        command = [program, "-dcq", "--long=27", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield process.stdout
            is_whole = not process.stdout.read(1)
            process.stdout.close()
        if is_whole and process.returncode:
            raise ReplayError(f"{path}: zstd cannot read it to its end; give a whole trace file")
    else:
        with path.open(encoding="utf-8") as lines:
            yield lines


def _request(line: str, where: str) -> TraceRequest:
    try:
        row: dict[str, Any] = json.loads(line)
        session = row.get("session_id")
        request = TraceRequest(
            timestamp_ms=int(row["timestamp"]),
            prompt_tokens=int(row["input_length"]),
            answer_tokens=int(row["output_length"]),
            block_ids=_block_ids(row["hash_ids"], where),
            conversation=None if session is None else (session, row.get("agent", 0)),
            stop=row.get("stop") or "",
        )
        hash(request.conversation)
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise ReplayError(
            f"{where}: is no request of a trace ({error!r}): give an object with the numbers "
            "timestamp, input_length and output_length, and a list hash_ids"
        ) from error
    if request.prompt_tokens < 1 or request.answer_tokens < 0 or not len(request.block_ids):
        raise ReplayError(f"{where}: a request needs prompt tokens and their block ids")
    return request


def _block_ids(ids: Any, where: str) -> NDArray[np.int64]:
    try:
        return np.asarray(ids, dtype=np.int64)
    except OverflowError:
        raise ReplayError(
            f"{where}: hash_ids has a number beyond 64 bits with a sign: number the blocks of the "
            "whole trace anew, from 0 on"
        ) from None


def _block_tokens(requests: list[TraceRequest]) -> int:
    longest = max(requests[:200], key=lambda request: request.prompt_tokens)
    return min(
        _BLOCK_SIZES,
        key=lambda size: abs(-(-longest.prompt_tokens // size) - len(longest.block_ids)),
    )
