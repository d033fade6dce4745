"""Trials of grammars by real processes, with replacements that act like harmful sources."""

import asyncio
import os
import random
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tasuki.model.grammar.grammar import (
    GrammarError,
    GrammarKind,
    GrammarsBusy,
    GrammarsUnavailable,
)
from tasuki.model.grammar.trials import trial
from tasuki.model.grammar.trials.client import DRAINS, GrammarTrials, TrialHost
from tasuki.model.grammar.trials.messages import Outcome, Verdict
from tasuki.model.grammar.trials.queue import QueueBounds, Source
from tasuki.model.grammar.trials.server import TrialServer
from tasuki.model.grammar.trials.trial import Trees
from tasuki.model.grammar.vocabulary import ALL_BYTES, Vocabulary
from tests.harness.trial_stand_ins import OBEYS
from tests.harness.waiting import HANG_SECONDS, until

REGEX = GrammarKind.REGEX


@pytest.fixture(scope="module")
def host() -> Iterator[TrialHost]:
    with pytest.MonkeyPatch.context() as patch:
        # With two cores one trial runs at a time, on any machine.
        patch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
        made = TrialHost(ALL_BYTES, OBEYS)
    yield made
    made.close()


@pytest.fixture
def trials(host: TrialHost) -> GrammarTrials:
    """Return a client without remembered verdicts."""
    return GrammarTrials(host.open)


def verdict(trials: GrammarTrials, text: str, caller: str = "ann") -> Verdict:
    return trials.verdict(caller, REGEX, text).result(HANG_SECONDS)


def children() -> list[int]:
    """Return the process ids of this process's grandchildren: the running trials."""
    found = []
    for server in _children_of(os.getpid()):
        found += _children_of(server)
    return found


def _children_of(parent: int) -> list[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{parent}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text().split())
        except OSError:
            continue
    return found


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until_tried(begun: "Future[Verdict]") -> int:
    """Wait until one child runs; return its number."""
    until(lambda: len(children()) == 1 or begun.done(), lambda: "no trial was started")
    assert not begun.done()
    return children()[0]


def test_a_grammar_that_compiles_passes_with_the_memory_that_it_takes(
    trials: GrammarTrials,
) -> None:
    words = "|".join(f"word{number}" for number in range(5000))
    large, small = verdict(trials, words), verdict(trials, "[0-9]{3}")
    assert large.outcome is small.outcome is Outcome.PASSED
    assert large.held_bytes > small.held_bytes + (256 << 10)


def test_a_grammar_that_does_not_compile_is_refused_with_the_reason(
    trials: GrammarTrials,
) -> None:
    told = verdict(trials, "(a")
    assert told.outcome is Outcome.REFUSED and "unclosed group" in told.reason


def test_a_grammar_that_fails_over_the_vocabulary_alone_is_refused() -> None:
    """Over bytes it compiles, but the verdict is by the tokens of the node's model."""
    rng, letters = random.Random(0), b"abcdefghijklmnopqrstuvwxyz "
    words = {bytes(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(60_000)}
    tokens = (*ALL_BYTES.tokens[:256], *sorted(words), b"")
    branches = "|".join(f".*{chr(97 + place)}.{{{5 + place}}}" for place in range(26))
    trials = GrammarTrials.of(Vocabulary(tokens, (len(tokens) - 1,)))
    bytes_alone = GrammarTrials.of(ALL_BYTES)
    assert verdict(bytes_alone, branches).outcome is Outcome.PASSED
    assert verdict(trials, branches).outcome is Outcome.REFUSED


def final_verdict(trials: GrammarTrials, source: str) -> Verdict:
    """Return the final verdict, asking again as callers do. On a busy machine a trial, of the
    lowest priority, may get no turn."""
    for _ in range(5):
        told = verdict(trials, source)
        if told.is_final:
            break
    return told


@pytest.mark.parametrize("word", ["spin", "allocate", "crash", "abort"])
def test_a_trial_that_costs_too_much_is_refused_and_remembered(
    trials: GrammarTrials, word: str
) -> None:
    began = time.process_time()
    told = final_verdict(trials, word)
    assert told == trial.TOO_COSTLY
    assert time.process_time() - began < 1.0, "the cost is the child's"
    again = GrammarTrials(lambda: trials.address)
    start = time.monotonic()
    assert verdict(again, word) == told
    assert time.monotonic() - start < 1.0, "the server remembers it"


@pytest.mark.parametrize("word", ["exit", "garbage", "flood"])
def test_a_trial_without_a_readable_answer_is_no_verdict_on_the_grammar(
    trials: GrammarTrials, word: str
) -> None:
    told = verdict(trials, word)
    assert told.outcome in (Outcome.UNAVAILABLE, Outcome.BUSY)
    assert not told.is_final
    assert verdict(trials, "[a-z]").outcome is Outcome.PASSED


def test_a_trial_ended_from_outside_is_no_verdict_on_the_grammar(trials: GrammarTrials) -> None:
    begun = trials.verdict("ann", REGEX, "sleep outside")
    os.kill(until_tried(begun), signal.SIGKILL)
    assert begun.result(HANG_SECONDS).outcome is Outcome.BUSY


def test_a_child_runs_at_the_lowest_priority_within_its_bounds(trials: GrammarTrials) -> None:
    begun = trials.verdict("ann", REGEX, "sleep bounds")
    child = until_tried(begun)
    until(lambda: os.getpriority(os.PRIO_PROCESS, child) == 19, lambda: "its priority is not 19")
    until(
        lambda: f"{trial.MAX_ADDRESS_BYTES}" in Path(f"/proc/{child}/limits").read_text(),
        lambda: "its address space has no bound",
    )
    limits = {line[:26].strip(): line[26:].split() for line in _lines(f"/proc/{child}/limits")}
    assert limits["Max address space"][0] == str(512 << 20)
    assert limits["Max cpu time"][0] == "2"
    assert limits["Max stack size"][0] == str(2 << 20)
    assert limits["Max core file size"][0] == limits["Max file size"][0] == "0"
    assert Path(f"/proc/{child}/oom_score_adj").read_text().strip() == "1000"
    # Three streams to nowhere, and the answer's pipe.
    assert len(os.listdir(f"/proc/{child}/fd")) == 4
    begun.cancel()
    until(lambda: not children(), lambda: "the child runs on")


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def test_a_trial_whose_last_caller_leaves_is_killed_at_once(trials: GrammarTrials) -> None:
    first = trials.verdict("ann", REGEX, "sleep twice")
    second = trials.verdict("bob", REGEX, "sleep twice")
    child = until_tried(first)
    first.cancel()
    time.sleep(0.3)
    assert children() == [child], "bob still waits for it"
    second.cancel()
    left = time.monotonic()
    until(lambda: not children(), lambda: "the child of a grammar without callers runs on")
    assert time.monotonic() - left < 0.5


async def test_a_cancelled_task_gives_its_trial_up(trials: GrammarTrials) -> None:
    task = asyncio.ensure_future(trials.check("ann", REGEX, "sleep task"))
    while not children():
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    until(lambda: not children(), lambda: "the child of a cancelled task runs on")


def test_another_caller_s_grammar_waits_for_one_trial_at_most(trials: GrammarTrials) -> None:
    """Ann's eight take two seconds each; bob's is next once one of them has ended."""
    anns = [trials.verdict("ann", REGEX, f"spin {number}") for number in range(8)]
    until_tried(anns[0])
    assert verdict(trials, "[b]{2}", "bob").outcome is Outcome.PASSED
    assert sum(each.done() for each in anns) <= 2
    for each in anns:
        each.cancel()
    until(lambda: not children(), lambda: "trials without callers run on")


def test_a_drain_ends_every_wait_and_later_ones(trials: GrammarTrials) -> None:
    begun = [trials.verdict("ann", REGEX, f"sleep drain {number}") for number in range(3)]
    until_tried(begun[0])
    trials.close(DRAINS)
    assert [each.result(1.0) for each in begun] == [Verdict(Outcome.BUSY, DRAINS)] * 3
    assert verdict(trials, "[d]") == Verdict(Outcome.BUSY, DRAINS)
    until(lambda: not children(), lambda: "the children of a draining node run on")


def test_a_server_that_dies_ends_its_waits_and_is_started_again() -> None:
    own = TrialHost(ALL_BYTES, OBEYS)
    client = GrammarTrials(own.open)
    before = set(_children_of(os.getpid()))
    assert verdict(client, "[a]").outcome is Outcome.PASSED
    (server,) = set(_children_of(os.getpid())) - before
    begun = client.verdict("ann", REGEX, "sleep server")
    until(lambda: bool(_children_of(server)), lambda: "no trial was started")
    (child,) = _children_of(server)
    os.kill(server, signal.SIGKILL)
    assert begun.result(HANG_SECONDS).outcome is Outcome.BUSY
    until(lambda: not _runs(child), lambda: "the child outlived its server")
    assert verdict(client, "[e]").outcome is Outcome.PASSED
    own.close()
    assert set(_children_of(os.getpid())) <= before
    assert client.verdict("ann", REGEX, "[f]").result(HANG_SECONDS).outcome is not Outcome.PASSED


def test_a_reaped_child_s_pipe_is_not_read_again() -> None:
    """One turn of the selector may bring the child's end before its last answer."""
    with socket.socket(socket.AF_UNIX) as listener:
        server = TrialServer(listener, QueueBounds(1), Trees(None, None), _passes)
        child = trial.fork_trial(_passes, Trees(None, None), Source(REGEX, "a"))
        until(lambda: child.reaped() is not None, lambda: "the child runs on")
        child.close()
        server._read_answer(child)


def _passes(trees: Trees, source: Source) -> Verdict:
    return Verdict(Outcome.PASSED)


def test_check_raises_by_the_verdict(trials: GrammarTrials) -> None:
    async def check(text: str) -> None:
        await trials.check("ann", REGEX, text)

    asyncio.run(check("pass"))
    with pytest.raises(GrammarError, match="the stand-in refuses it"):
        asyncio.run(check("refuse"))
    with pytest.raises(GrammarError, match="half of a character"):
        asyncio.run(check("\ud800"))
    with pytest.raises(GrammarsUnavailable, match="no readable answer"):
        asyncio.run(check("exit now"))
    trials.close(DRAINS)
    with pytest.raises(GrammarsBusy, match="draining"):
        asyncio.run(check("new"))


def test_half_a_character_is_refused_without_a_trial() -> None:
    def no_address() -> str:
        raise AssertionError("no server is needed")

    told = GrammarTrials(no_address).verdict("ann", REGEX, "a\ud800").result(0)
    assert told.outcome is Outcome.REFUSED
