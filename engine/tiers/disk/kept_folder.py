"""The folder of a disk tier, for data of one contract (the model's settings) and one node at a
time. Also remembers digests of weight files."""

import fcntl
import json
import logging
import os
import stat
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasuki.engine.tiers.store import PREFIX, contract_digest, folder_of
from tasuki.model.weights.safetensors_folder import file_digest, weights_digest
from tasuki.model.weights.tensor_tree import WeightsDigests, tensors_digest

log = logging.getLogger(__name__)


class DiskFailed(OSError):
    """A failed disk operation. The requested data is computed instead."""


_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_LOCK_SECONDS = 5.0
"""Seconds to wait for the folder's lock: the longest exit time of a killed node."""
_POLL_SECONDS = 0.05


class KeptFolder:
    """The folder for data of one contract (the model's settings) on a disk, used by one node at a
    time.

    Kept data is as secret as prompts: folder and files are accessible to their user alone. No file
    is opened through a link, or if another user owns it. Folders of other contracts stay untouched.
    Locked until close(), or until the object or the process ends.
    """

    def __init__(self, parent: Path, contract: Mapping[str, str]) -> None:
        """parent: existing folder to make this folder in. contract: settings to compare before kept
        bytes are used; their digest names the folder. Raises DiskFailed if the folder belongs to
        another user, is in use by another node, or cannot be made."""
        if not parent.is_dir():
            # The parent is not made here: if a disk is not mounted, it would become a folder of the
            # system disk.
            raise DiskFailed(f"there is no folder {parent}: mount its disk, or mkdir -m 700 it")
        self.contract = contract_digest(contract)
        name = folder_of(self.contract)
        self.path = parent / name
        try:
            if not self.path.is_symlink() and not self.path.is_dir():
                os.mkdir(self.path, _FOLDER_MODE)
            status = os.lstat(self.path)
            _check_owner(self.path, status, is_kind=stat.S_ISDIR(status.st_mode))
            os.chmod(self.path, _FOLDER_MODE)
            self.others = sum(
                each.name.startswith(PREFIX) and each.name != name for each in parent.iterdir()
            )
            self._lock = self.open("lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise DiskFailed(f"{self.path} cannot be used: {error}") from error
        self._let_go = weakref.finalize(self, os.close, self._lock)
        try:
            _lock(self._lock, self.path)
        except DiskFailed:
            self.close()
            raise

    def open(self, name: str, flags: int) -> int:
        """Open a file of this folder and return its descriptor. Raises OSError if the file belongs
        to another user, is a link, or is not a plain file."""
        path = self.path / name
        found = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        try:
            status = os.fstat(found)
            _check_owner(path, status, is_kind=stat.S_ISREG(status.st_mode))
            if status.st_nlink != 1:
                raise DiskFailed(f"{path} has {status.st_nlink} names: remove it")
            os.fchmod(found, _FILE_MODE)
        except OSError:
            os.close(found)
            raise
        return found

    def close(self) -> None:
        """Release the lock, so another node may use the folder. Idempotent. REQUIRES: no file of
        the folder is written any more."""
        self._let_go()


def _check_owner(path: Path, status: os.stat_result, *, is_kind: bool) -> None:
    if not is_kind:
        raise DiskFailed(f"{path} is neither a plain file nor a folder: remove it")
    if status.st_uid != os.geteuid():
        raise DiskFailed(
            f"{path} is of user {status.st_uid}, and this node of user {os.geteuid()}: remove it, "
            "or give another folder"
        )


def _lock(descriptor: int, path: Path) -> None:
    ends = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < ends:
                time.sleep(_POLL_SECONDS)
                continue
            owner = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            raise DiskFailed(
                f"{path} is in use by another node, process {owner or 'unknown'}: give each node a "
                "folder of its own"
            ) from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return


_NAME = "weights.json"
_TREE = "tensors of "
"""Beginning of the name of an entry with a digest of tensors; the digest of their files follows."""
_SETTLED_SECONDS = 2.0
"""Least seconds between a file's last change and its reading for its digest to be saved. A younger
file could change again without a change of its recorded times."""


class KnownWeights:
    """Known digests of weight files, saved in a file in the disk cache's folder.

    Digesting a checkpoint of 18 GB takes 10 to 25 s, at each restart. A weight file counts as
    unchanged if path, size, device, inode, modification time and change time are equal. Users
    cannot set the change time. A file changed just before its reading is not saved, because a
    second change could leave the same times. Thread rule: any thread for digest(), one thread for
    the rest. Raises nothing for its own file: if it cannot be read or written, digests are computed
    from the weights.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self._known = self._read()
        self._seen: dict[str, list[Any]] = {}

    def digest(self, file: Path) -> bytes:
        """Return the SHA-256 of the weight file; a known digest if the file is unchanged."""
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

    def tensors(self, model: str, files: str) -> str:
        """Return tensors_digest() of the model. files: digest of its files; if that is known, its
        tensors are too."""
        known = self._known.get(f"{_TREE}{files}")
        found = tensors_digest(model) if known is None else str(known[0])
        self._seen[f"{_TREE}{files}"] = [found]
        return found

    def _file_time(self) -> float | None:
        """Return the current time by the file system's clock, in seconds; None if no file can be
        made in the folder."""
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
                if len(known) == (1 if name.startswith(_TREE) else 6)
                and len(bytes.fromhex(known[-1])) == 32
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError) as error:
            log.warning("%s is not used: %s", self._path, error)
            return {}

    def save(self) -> None:
        """Save the digests requested in this run together with earlier known ones."""
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
    """Return weights_digest() of the model. folder: the disk cache's folder, to remember digests of
    weight files in; None without a disk cache."""
    if folder is None or not Path(folder).is_dir():
        return weights_digest(model)
    known = KnownWeights(Path(folder))
    found = weights_digest(model, known.digest)
    known.save()
    return found


def digests_of_weights(model: str, folder: str | None) -> WeightsDigests:
    """Return both digests of the model. folder: as for digest_of_weights()."""
    if folder is None or not Path(folder).is_dir():
        return WeightsDigests(weights_digest(model), tensors_digest(model))
    known = KnownWeights(Path(folder))
    files = weights_digest(model, known.digest)
    found = WeightsDigests(files, known.tensors(model, files))
    known.save()
    return found
