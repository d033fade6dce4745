"""Tokens held by the decode node but not pulled are reported with their own cause, never as new."""

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasuki.cli.request_story import story
from tasuki.client.prompt import Prompt
from tasuki.engine import messages as m
from tasuki.engine.accounting import pair_hit
from tasuki.engine.messages import CAUSES_IN_ORDER, NOT_PULLED
from tests.harness.daemons import flags, fleet, meet
from tests.harness.metrics_text import scraped
from tests.harness.running_nodes import needs_nixl

PROMPT = 700


def hit(usable: int, **causes: int) -> m.HitBreakdown:
    """Return the hit of a prompt of PROMPT tokens; the tokens without a cause are new."""
    new = PROMPT - usable - sum(causes.values())
    return m.HitBreakdown(PROMPT, usable, usable, {**causes, "new": new}, None)


def lost(found: m.HitBreakdown) -> dict[str, int]:
    return {cause: tokens for cause, tokens in found.causes.items() if tokens}


def by_token(found: m.HitBreakdown) -> list[str]:
    named = ["usable"] * found.usable_tokens
    for cause in (NOT_PULLED, *CAUSES_IN_ORDER):
        named += [cause] * found.causes.get(cause, 0)
    return named


def test_what_was_held_here_is_not_pulled_and_new_is_new_to_both() -> None:
    told = pair_hit(hit(512), hit(613, alignment=20))
    assert lost(told) == {"not_pulled": 101, "alignment": 20, "new": 67}


def test_it_takes_the_place_of_every_cause_of_the_other_node() -> None:
    told = pair_hit(hit(320, checkpoint_evicted=128, in_flight=64), hit(400))
    assert lost(told) == {"not_pulled": 80, "checkpoint_evicted": 48, "in_flight": 64, "new": 188}


def test_what_was_pulled_or_never_held_changes_nothing() -> None:
    computed = hit(640, alignment=3)
    for held in (hit(640), hit(64), hit(0)):
        assert lost(pair_hit(computed, held)) == lost(computed)


@st.composite
def hits(draw: st.DrawFn) -> m.HitBreakdown:
    cuts = sorted(
        draw(
            st.lists(
                st.integers(0, PROMPT), min_size=len(CAUSES_IN_ORDER), max_size=len(CAUSES_IN_ORDER)
            )
        )
    )
    spans = np.diff([*cuts, PROMPT]).tolist()
    return m.HitBreakdown(
        PROMPT, cuts[0], cuts[0], dict(zip(CAUSES_IN_ORDER, spans, strict=True)), None
    )


@given(hits(), hits())
def test_each_token_has_the_cause_that_both_caches_explain(
    computed: m.HitBreakdown, held: m.HitBreakdown
) -> None:
    told = pair_hit(computed, held)
    assert told.usable_tokens + sum(told.causes.values()) == PROMPT
    expected: Counter[str] = Counter()
    for there, here in zip(by_token(computed), by_token(held), strict=True):
        if there != "usable" and here == "usable":
            expected[NOT_PULLED] += 1
        else:
            expected[here if there == "new" else there] += 1
    assert lost(told) == {cause: n for cause, n in expected.items() if cause != "usable"}


@needs_nixl
def test_a_pair_that_pulls_nothing_tells_of_it_everywhere() -> None:
    """Two daemons: the next turn's prompt is computed on a node without the last turn's answer."""
    rng = np.random.default_rng(16)
    shared = flags()
    with fleet() as start:
        prefill = start("prefill", *shared, "--pull-tokens", "100000")
        decode = start(
            *("decode", *shared, "--prefill", prefill.address, "--local-prefill-tokens", "0"),
            *("--http-bind", "127.0.0.1:0"),
        )
        meet(decode)
        log = rng.integers(0, 1024, 200).tolist()
        for turn in range(2):
            answer = decode.client.generate(
                Prompt(token_ids=log), max_new_tokens=40, ignore_eos=True, request_id=f"turn-{turn}"
            ).result()
            asked = len(log)
            log += [*answer.token_ids, *rng.integers(0, 1024, 50).tolist()]
        # The first answer's last token was sampled and never forwarded.
        turn_end = asked - 50 - 1
        hit = answer.usage.hit
        assert hit is not None and answer.usage.prefilled_on == "prefill"
        assert hit.usable_tokens == 192 and hit.causes["new"] == 51
        assert hit.causes["not_pulled"] == turn_end - hit.usable_tokens > 0
        told = "\n".join(story(decode.client.explain("turn-1")))
        assert f"not_pulled{hit.causes['not_pulled']:>17}" in told
        counted = scraped(decode.http_address)
        assert counted["tasuki_request_lost_tokens_total{cause=not_pulled}"] == turn_end - 192
