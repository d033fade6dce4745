"""The folder of one contract on a disk: whose it is, and that one node at a time has it.

What a node keeps is as secret as its prompts: folder and files are its user's alone. Nothing is
opened through a link, nor of another user. Folders of other contracts are left alone.
"""

import fcntl
import os
import stat
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path

from tasuki.engine.tiers.store.contract_name import PREFIX, contract_digest, folder_of

from .disk_failed import DiskFailed

_FOLDER_MODE, _FILE_MODE = 0o700, 0o600
_LOCK_SECONDS = 5.0
"""A node that was killed may take so long to be gone."""
_POLL_SECONDS = 0.05


class KeptFolder:
    """Locked until close(), or until the object or the process goes."""

    def __init__(self, parent: Path, contract: Mapping[str, str]) -> None:
        """contract: what must be equal before bytes that were kept are used. Raises DiskFailed:
        another user's, another node's, or no folder can be made there."""
        if not parent.is_dir():
            # Not made here: a disk that is not mounted would become a folder of the system's.
            raise DiskFailed(f"there is no folder {parent}: mount its disk, or mkdir -m 700 it")
        self.contract = contract_digest(contract)
        name = folder_of(self.contract)
        self.path = parent / name
        try:
            if not self.path.is_symlink() and not self.path.is_dir():
                os.mkdir(self.path, _FOLDER_MODE)
            _check_owner(self.path, os.lstat(self.path), stat.S_ISDIR)
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
        """A descriptor of a file of this folder. Raises OSError: another user's, a link, or no
        plain file."""
        path = self.path / name
        found = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, _FILE_MODE)
        try:
            status = os.fstat(found)
            _check_owner(path, status, stat.S_ISREG)
            if status.st_nlink != 1:
                raise DiskFailed(f"{path} has {status.st_nlink} names: remove it")
            os.fchmod(found, _FILE_MODE)
        except OSError:
            os.close(found)
            raise
        return found

    def close(self) -> None:
        """Another node may have it. Idempotent. REQUIRES: nothing of it is written any more."""
        self._let_go()


def _check_owner(path: Path, status: os.stat_result, is_kind: Callable[[int], bool]) -> None:
    if not is_kind(status.st_mode):
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
