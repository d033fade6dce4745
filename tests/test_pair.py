"""A prefill and a decode daemon as separate processes: the same tokens as one process, and nothing
left behind."""

import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from tasuki.client.answer import Answer
from tasuki.client.launcher import Daemon, fused
from tasuki.client.session import Client, Prompt
from tasuki.client.verdict import TIE_MARGIN, TIE_SHARE
from tasuki.proto import inference_pb2 as pb

from tests.goldens import MODELS, reference_dir
from tests.random_checkpoint import write_random_model

OWNERS = ("free", "working", "tree", "granted", "quarantined")


@dataclass
class Pair:
    """Both daemons, each with a client."""

    prefill: Client
    decode: Client

    def assert_at_rest(self, seconds: float = 5.0) -> None:
        """Within that time nothing is held on either side, and every id is accounted for."""
        deadline = time.monotonic() + seconds
        while not (at_rest(self.prefill.stats()) and at_rest(self.decode.stats())):
            assert time.monotonic() < deadline, (self.prefill.stats(), self.decode.stats())
            time.sleep(0.05)


def at_rest(stats: pb.StatsResponse) -> bool:
    assert stats.integrity == "ok"
    for pool in (stats.pages, stats.slots):
        assert sum(pool[owner] for owner in OWNERS) == pool["total"]
    held = sum(
        pool[owner]
        for pool in (stats.pages, stats.slots)
        for owner in ("working", "granted", "quarantined", "pinned")
    )
    return held == 0 and stats.tree["leases"] == 0 and not stats.requests


def start_pair(stack: ExitStack, model: Path, arena_mib: int, *decode_flags: str) -> Pair:
    flags = ["--model", str(model), "--dtype", "float32", "--arena-mib", str(arena_mib)]
    prefill = Daemon("prefill", [*flags, "--prefill-chunk-tokens", "128"])
    stack.callback(prefill.stop)
    address = prefill.wait_ready()
    decode = Daemon("decode", [*flags, "--prefill", address, *decode_flags])
    stack.callback(decode.stop)
    pair = Pair(Client(address), Client(decode.wait_ready()))
    stack.callback(pair.prefill.close)
    stack.callback(pair.decode.close)
    return pair


@pytest.mark.parametrize("model", MODELS)
def test_every_golden_through_two_daemons(model: str) -> None:
    folder = reference_dir(model)
    cases = json.loads((folder / "golden.json").read_text())["cases"]
    with ExitStack() as stack:
        # Nothing is short enough to stay.
        pair = start_pair(stack, folder, 64, "--local-prefill-tokens", "0")

        def answer(case: dict[str, list[int]]) -> Answer:
            return pair.decode.generate(
                Prompt(token_ids=case["prompt"]),
                max_new_tokens=len(case["greedy"]),
                ignore_eos=True,
            ).result()

        with ThreadPoolExecutor(len(cases)) as pool:
            answers = [*pool.map(answer, cases)]
        again = [answer(case) for case in cases]
        for got in (answers, again):
            for case, found in zip(cases, got, strict=True):
                assert list(found.token_ids) == case["greedy"], case["name"]
        for found in [*answers, *again]:
            assert found.usage.prefilled_on == "prefill" and found.usage.transfer is not None
        for case, found in zip(cases, again, strict=True):
            assert found.usage.hit is not None
            assert found.usage.hit.usable_tokens == (len(case["prompt"]) - 1) // 64 * 64
        pair.assert_at_rest()


@dataclass(frozen=True)
class Turn:
    """One of the 200: its prompt, and after how many tokens its client leaves, if it does."""

    prompt: tuple[int, ...]
    new_tokens: int
    leaves_after: int | None


def ask(client: Client, turn: Turn) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Tokens and margins that the client saw."""
    stream = client.generate(
        Prompt(token_ids=turn.prompt), max_new_tokens=turn.new_tokens, ignore_eos=True
    )
    if turn.leaves_after is None:
        answer = stream.result()
        return answer.token_ids, answer.margins
    seen: list[int] = []
    for piece in stream:
        seen.extend(piece.token_ids)
        if len(seen) >= turn.leaves_after:
            stream.cancel()
            break
    return tuple(seen), ()


def conversation(number: int, client: Client) -> list[tuple[Turn, tuple[int, ...], list[float]]]:
    """Four turns that share a beginning with other conversations, each appending to the last."""
    rng = random.Random(number)
    shared = random.Random(number % 5)
    log = [shared.randrange(1024) for _ in range(shared.randrange(100, 400))]
    turns = []
    for _ in range(4):
        log += [rng.randrange(1024) for _ in range(rng.randrange(3, 260))]
        leaves = rng.randrange(1, 4) if rng.random() < 0.2 else None
        turn = Turn(tuple(log), rng.randrange(4, 10), leaves)
        tokens, margins = ask(client, turn)
        turns.append((turn, tokens, list(margins)))
        log += tokens
    return turns


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("model")
    write_random_model(folder)
    yield folder


def test_200_mixed_requests_give_equal_tokens_fused_and_disaggregated(random_model: Path) -> None:
    flags = ["--model", str(random_model), "--dtype", "float32", "--arena-mib", "96"]
    with fused(flags) as address, Client(address) as oracle, ThreadPoolExecutor(6) as pool:
        expected = [*pool.map(lambda number: conversation(number, oracle), range(50))]
    turns = [turn for turns in expected for turn in turns]
    assert len(turns) == 200
    assert sum(turn.leaves_after is not None for turn, _, _ in turns) > 20
    with ExitStack() as stack:
        pair = start_pair(stack, random_model, 96)

        def replay(turns: list[tuple[Turn, tuple[int, ...], list[float]]]) -> list[tuple[int, ...]]:
            return [ask(pair.decode, turn)[0] for turn, _, _ in turns]

        with ThreadPoolExecutor(6) as pool:
            replayed = [tokens for each in pool.map(replay, expected) for tokens in each]
        pair.assert_at_rest()
        assert pair.prefill.stats().tree["leased_requests"] > 50, "too few went through prefill"
    ties = 0
    compared = 0
    for (turn, want, margins), got in zip(turns, replayed, strict=True):
        both = min(len(want), len(got))
        if turn.leaves_after is None:
            assert len(got) == len(want) == turn.new_tokens
        for position in range(both):
            compared += 1
            if got[position] != want[position]:
                assert margins and margins[position] < TIE_MARGIN, (turn, position)
                ties += 1
                break
    assert ties <= TIE_SHARE * compared, f"{ties} near ties in {compared} tokens"
