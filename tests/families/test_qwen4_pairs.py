"""Qwen4-Exp over two daemons, with drafts of its draft layer, tables read first, and ranks."""

import json

import pytest

from tests.harness.covering import slow_behind
from tests.harness.daemons import asked
from tests.harness.goldens import reference_dir
from tests.harness.qwen4_models import needs_goldens
from tests.harness.rank_pairs import next_turns, pair_of, ranks

SET = "qwen4-exp-tiny"
DRAFTS = ("--speculate", "mtp", "--draft-tokens", "3", "--draft-count", "most")
SHAPES = {"1-1": (1, 1), "1-2": (1, 2), "2-1": (2, 1)}
PLACES = ("--ngram-table", "host", "--expert-parallel")


def drafting(count: int) -> tuple[str, ...]:
    """Return the flags of a node that drafts, with its experts divided by expert."""
    return (*ranks(count), *DRAFTS, *(PLACES if count > 1 else PLACES[:2]))


@needs_goldens
@pytest.mark.parametrize(("senders", "receivers"), slow_behind(1, SHAPES))
def test_drafts_behind_a_hand_over_change_nothing(senders: int, receivers: int) -> None:
    cases = json.loads((reference_dir(SET) / "golden.json").read_text())["cases"]
    with pair_of(SET, senders, receivers, where=drafting) as (_, decode):
        for case in cases:
            answer = asked(decode, tuple(case["prompt"]), b"", len(case["greedy"])).result()
            assert list(answer.token_ids) == case["greedy"], case["name"]
            assert answer.usage.prefilled_on == "prefill" and not answer.usage.local_fallback
            assert answer.usage.drafted_tokens > 0
        assert next_turns(decode, cases) > 0
