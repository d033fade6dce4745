"""Logs that cannot be written stop nothing: both daemons serve with their stderr on a full disk."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasuki.cli import main as cli
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tests.harness.daemons import flags, meet, random_prompt
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.running_nodes import needs_nixl

FULL_DISK = Path("/dev/full")


def serve(arguments: list[str]) -> int:
    with FULL_DISK.open("w") as full:
        os.dup2(full.fileno(), 2)
    return cli.main(arguments)


@contextmanager
def logging_to_a_full_disk(command: str, *more: str) -> Iterator[str]:
    """Yield its HOST:PORT."""
    daemon = ForkedDaemon(command, [*flags(arena_mib=16), *more], main=serve)
    try:
        yield daemon.wait_ready()
    finally:
        assert daemon.stop() == 0


@needs_nixl
@pytest.mark.skipif(not FULL_DISK.exists(), reason="needs /dev/full")
def test_a_full_disk_for_logs_stops_nothing() -> None:
    prompt = Prompt(token_ids=random_prompt(200, 0))
    with (
        logging_to_a_full_disk("prefill") as prefill,
        # Both log each other's coming, and the loss at the end.
        logging_to_a_full_disk("decode", "--prefill", prefill) as decode,
        Client(decode) as client,
    ):
        meet(client)
        answers = [
            client.generate(prompt, max_new_tokens=8, ignore_eos=True, cache_salt=salt).result()
            for salt in (b"a", b"b")
        ]
    assert len(answers[0].token_ids) == 8
    assert answers[0].token_ids == answers[1].token_ids
    assert [answer.usage.prefilled_on for answer in answers] == ["prefill", "prefill"]
