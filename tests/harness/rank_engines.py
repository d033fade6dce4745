"""Engines with their model split among ranks. Each follower (a rank other than the first) is a
process forked from one with torch imported."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from tasuki.engine.assembly.ranks import StartRanks, build_leader_parts
from tasuki.engine.parallel.ranks import RankProcess
from tasuki.utils.child_process import Job
from tasuki.utils.system import die_with_parent
from tests.harness.engines import Lone, engine_config
from tests.harness.fork_server import forked_peer


def forked_ranks(jobs: Sequence[Job]) -> list[RankProcess]:
    """Start ranks as start_ranks() does, by forks. jobs: functions of the ranks."""
    return [rank_process(_live, job) for job in jobs]


def rank_process(target: object, *arguments: object) -> RankProcess:
    """Start a rank's process. target: function called with a connection and the arguments."""
    process, ours = forked_peer(target, *arguments)  # type: ignore[arg-type]
    assert process.pid is not None
    return RankProcess(process.pid, as_socket(ours))


def as_socket(connection: Connection) -> socket.socket:
    """Return a socket over a pipe's end, and close the pipe's end."""
    handle = os.dup(connection.fileno())
    connection.close()
    return socket.socket(fileno=handle)


def _live(connection: Connection, job: Job) -> None:
    die_with_parent()
    raise SystemExit(job(as_socket(connection)))


@contextmanager
def rank_engine(model: Path, start: StartRanks = forked_ranks, **changes: object) -> Iterator[Lone]:
    """Yield an engine of several ranks driven by hand; its followers end with the block. start:
    starts their processes."""
    config = engine_config(model, **changes)
    parts = build_leader_parts(config, start=start)
    assert parts.ranks is not None
    try:
        yield Lone(config, parts=parts)
        parts.ranks.check()
    finally:
        parts.ranks.close()
