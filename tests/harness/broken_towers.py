"""Followers with a tower that fails on every picture."""

import socket
from collections.abc import Sequence
from functools import partial

from tasuki.engine.parallel.ranks import RankProcess
from tasuki.model.vision.tower import Encode, VisionTower
from tasuki.utils.child_process import Job
from tests.harness.rank_engines import forked_ranks

NO_MEMORY = "no memory is left"


def broken_ranks(fault: str, jobs: Sequence[Job]) -> list[RankProcess]:
    """Start ranks as start_ranks() does. fault: the method of the towers that fails."""
    return forked_ranks([partial(_live_broken, fault, job) for job in jobs])


def _live_broken(fault: str, job: Job, connection: socket.socket) -> int:
    """Run a follower's job in a process of its own, with a broken tower."""
    setattr(VisionTower if fault == "begin" else Encode, fault, _broken)
    return job(connection)


def _broken(*_: object) -> None:
    raise MemoryError(NO_MEMORY)
