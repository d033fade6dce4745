"""A checkpoint's tokenizer and template files as one archive, for a gateway that tokenizes.

Pure but for reading the folder. The same files give the same bytes, so that gateways which keep
archives by their digest keep one.
"""

import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

from smg_grpc_proto.generated import common_pb2 as common_pb

from tasuki.server.errors import InvalidRequest

_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)
_CHUNK_BYTES = 1 << 20
_NO_DATE = (1980, 1, 1, 0, 0, 0)


def tokenizer_archive(folder: Path) -> bytes:
    """A zip. Raises InvalidRequest where the checkpoint has no tokenizer."""
    if not (folder / "tokenizer.json").is_file():
        raise InvalidRequest("this checkpoint has no tokenizer.json: give the gateway one")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as writing:
        for name in _FILES:
            path = folder / name
            if path.is_file():
                entry = zipfile.ZipInfo(name, date_time=_NO_DATE)
                entry.compress_type = zipfile.ZIP_DEFLATED
                writing.writestr(entry, path.read_bytes())
    return archive.getvalue()


def archive_chunks(archive: bytes) -> Iterator[common_pb.GetTokenizerChunk]:
    """The last one carries the digest of all."""
    digest = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), _CHUNK_BYTES):
        last = start + _CHUNK_BYTES >= len(archive)
        yield common_pb.GetTokenizerChunk(
            data=archive[start : start + _CHUNK_BYTES], sha256=digest if last else ""
        )
