"""A prefill and a decode daemon as separate processes: the same tokens as one process, with and
without drafts, and nothing left behind."""

import json
import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasuki.cli.demo import TIE_MARGIN, TIE_SHARE
from tasuki.client.answer import Answer
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine.assembly.parts import build_parts
from tests.harness.daemons import Node, flags, fleet, meet
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import engine_config, submit
from tests.harness.goldens import MODELS, OWN_MODELS, QUANTISED, reference_dir
from tests.harness.random_checkpoint import write_random_model

DAEMONS_OF = (OWN_MODELS[-1], *QUANTISED[-1:])
"""Models served by real daemons. For the others, two engines of this process hand over."""


@contextmanager
def pair(model: Path, arena_mib: int, *decode_flags: str) -> Iterator[tuple[Node, Node]]:
    """Yield a prefill and a decode node; at the end both hold nothing."""
    shared = flags(model, arena_mib=arena_mib)
    with fleet() as start:
        prefill = start("prefill", *shared, "--prefill-chunk-tokens", "128")
        decode = start("decode", *shared, "--prefill", prefill.address, *decode_flags)
        meet(decode)
        yield prefill, decode
        prefill.assert_at_rest()
        decode.assert_at_rest()


def cases_of(model: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((reference_dir(model) / "golden.json").read_text())[
        "cases"
    ]
    return cases


def usable(case: dict[str, Any]) -> int:
    """Return the usable tokens of the repeated prompt."""
    return (len(case["prompt"]) - 1) // 64 * 64


@pytest.mark.parametrize("model", DAEMONS_OF)
def test_every_golden_through_two_daemons(model: str) -> None:
    cases = cases_of(model)
    # Nothing is short enough to stay.
    with pair(reference_dir(model), 64, "--local-prefill-tokens", "0") as (_, decode):

        def answer(case: dict[str, Any]) -> Answer:
            return decode.client.generate(
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
            assert found.usage.prefilled_on == "prefill" and found.usage.transfer is not None
    for case, found in zip(cases, again, strict=True):
        assert found.usage.hit is not None
        assert found.usage.hit.usable_tokens == usable(case)


@pytest.mark.parametrize("model", sorted({*MODELS, *QUANTISED} - {*DAEMONS_OF}))
def test_every_golden_through_two_engines(model: str) -> None:
    parts = [build_parts(engine_config(reference_dir(model), arena_mib=64)) for _ in range(2)]
    with engine_pair(*parts, chunk_tokens=128) as both:
        for turn in ("once", "again"):
            for case in cases_of(model):
                name = f"{case['name']} {turn}"
                new = len(case["greedy"])
                transfer = both.hand_over(submit(name, case["prompt"], new))
                both.ready(transfer, None)
                both.done(transfer)
                both.decode.run()
                assert both.decode.tokens(name) == case["greedy"], name
                if turn == "again":
                    assert both.decode.hit(name).usable_tokens == usable(case)
        both.prefill.assert_at_rest()
        both.decode.assert_at_rest()


@dataclass(frozen=True)
class Turn:
    """One of the 200: its prompt, and after how many tokens its client leaves, if it does."""

    prompt: tuple[int, ...]
    new_tokens: int
    leaves_after: int | None


def ask(
    client: Client, turn: Turn, prediction: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[float, ...], int]:
    """Return the tokens and margins received by the client, and the number of accepted draft
    tokens."""
    stream = client.generate(
        Prompt(token_ids=turn.prompt),
        max_new_tokens=turn.new_tokens,
        ignore_eos=True,
        prediction=prediction,
    )
    if turn.leaves_after is None:
        answer = stream.result()
        return answer.token_ids, answer.margins, answer.usage.accepted_tokens
    seen: list[int] = []
    for piece in stream:
        seen.extend(piece.token_ids)
        if len(seen) >= turn.leaves_after:
            stream.cancel()
            break
    return tuple(seen), (), 0


def conversation(number: int, client: Client) -> list[tuple[Turn, tuple[int, ...], list[float]]]:
    """Return four turns with a prefix shared with other conversations; each turn extends the
    last."""
    rng = random.Random(number)
    shared = random.Random(number % 5)
    log = [shared.randrange(1024) for _ in range(shared.randrange(100, 400))]
    turns = []
    for _ in range(4):
        log += [rng.randrange(1024) for _ in range(rng.randrange(3, 260))]
        leaves = rng.randrange(1, 4) if rng.random() < 0.2 else None
        turn = Turn(tuple(log), rng.randrange(4, 10), leaves)
        tokens, margins, _ = ask(client, turn)
        turns.append((turn, tokens, list(margins)))
        log += tokens
    return turns


@pytest.fixture(scope="module")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("model")
    write_random_model(folder)
    yield folder


@pytest.mark.slow
def test_200_mixed_requests_give_equal_tokens_fused_and_disaggregated(random_model: Path) -> None:
    with fleet() as start:
        oracle = start("serve", *flags(random_model, arena_mib=96))
        with ThreadPoolExecutor(6) as pool:
            expected = [*pool.map(lambda n: conversation(n, oracle.client), range(50))]
        oracle.assert_at_rest()
    turns = [turn for turns in expected for turn in turns]
    assert len(turns) == 200
    assert sum(turn.leaves_after is not None for turn, _, _ in turns) > 20
    drafting = ("--speculate", "tree", "--draft-tokens", "3", "--draft-count", "most")
    with pair(random_model, 96, *drafting) as (prefill, decode):

        def replay(
            turns: list[tuple[Turn, tuple[int, ...], list[float]]],
        ) -> list[tuple[tuple[int, ...], int]]:
            found = []
            for number, (turn, want, _) in enumerate(turns):
                # Every other turn has its answer as a prediction, wrong in one place.
                said = [*want[:2], *(token ^ 1 for token in want[2:3]), *want[3:]] * (number % 2)
                tokens, _, held = ask(decode.client, turn, said)
                found.append((tokens, held))
            return found

        with ThreadPoolExecutor(6) as pool:
            each = [answer for answers in pool.map(replay, expected) for answer in answers]
        replayed = [tokens for tokens, _ in each]
        assert sum(held for _, held in each) > 100
        leased = prefill.stats().tree["leased_requests"]
    assert leased > 50, "too few went through the prefill node"
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
