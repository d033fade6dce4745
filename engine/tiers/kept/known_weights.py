"""Digests of weight files that were read before, in a file beside what a disk keeps.

A checkpoint of 18 GB takes 10 to 25 s to digest, and each restart would. A file is taken to be the
one that was read where its path, size, inode and both of its times are: its change time nobody can
set. One that was changed just before it was read is not noted, since a second change might bear the
same times.
"""

import json
import logging
import os
import stat
import tempfile
from pathlib import Path
from typing import Any

from tasuki.model.weights.safetensors_folder import file_digest, weights_digest

log = logging.getLogger(__name__)

_NAME = "weights.json"
_SETTLED_SECONDS = 2.0
"""Since a file was changed, before its times set it apart from what it becomes."""


class KnownWeights:
    """Thread rule: any, of digest(); one thread of the rest. Raises nothing: what cannot be read or
    written here is read from the weights."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._known = self._read()
        self._seen: dict[str, list[Any]] = {}

    def digest(self, file: Path) -> bytes:
        """SHA-256 of the file."""
        status = file.stat()
        times = [status.st_size, status.st_dev, status.st_ino]
        times += [status.st_mtime_ns, status.st_ctime_ns]
        name = str(file.resolve())
        known = self._known.get(name)
        if known is not None and known[:-1] == times:
            self._seen[name] = known
            return bytes.fromhex(known[-1])
        found = file_digest(file)
        now = self._file_time()
        if now is not None and now - max(status.st_mtime, status.st_ctime) > _SETTLED_SECONDS:
            self._seen[name] = [*times, found.hex()]
        return found

    def _file_time(self) -> float | None:
        """Now, by the clock that stamps files; None where none can be made here."""
        try:
            with tempfile.TemporaryFile(dir=self._path.parent) as made:
                return os.fstat(made.fileno()).st_mtime
        except OSError:
            return None

    def _read(self) -> dict[str, list[Any]]:
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            with open(handle, encoding="utf-8") as file:
                status = os.fstat(handle)
                if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
                    log.warning("%s may be another user's words: weights are read", self._path)
                    return {}
                found = json.load(file)
            return {
                str(name): list(known)
                for name, known in found.items()
                if len(known) == 6 and len(bytes.fromhex(known[-1])) == 32
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s is not used: %s", self._path, error)
            return {}

    def save(self) -> None:
        """What was asked for, with what was known before."""
        known = {**self._known, **self._seen}
        if known == self._known:
            return
        next_path = self._path.with_name(f"{_NAME}.{os.getpid()}")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
            with open(os.open(next_path, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(next_path, self._path)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error)


def digest_of_weights(model: str, folder: str | None) -> str:
    """As weights_digest(). folder: of a disk that keeps something, if there is one."""
    if folder is None or not Path(folder).is_dir():
        return weights_digest(model)
    known = KnownWeights(Path(folder))
    found = weights_digest(model, known.digest)
    known.save()
    return found
