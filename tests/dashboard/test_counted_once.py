"""Tests of an engine's counters after requests gave way to each other. Every counter equals the sum
over the usages reported to clients. A request counts once, however often it is looked up, computed
and queued again."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import NodeReport
from tasuki.engine import messages as m
from tests.harness.engines import prompt, submit, tiny_engine
from tests.harness.metrics_text import samples

REQUESTS, AT_ONCE, SLABS = 42, 8, 8
NEW_TOKENS = 75
APART = 30
OF_EVENTS = re.compile(
    # These count events of the tree and of steps, not requests. A repeated lookup or eviction
    # counts again.
    "tasuki_cache_|tasuki_engine_|tasuki_retractions|vllm:num_preemptions|"
    "sglang:num_retracted_requests|tasuki_draft_steps"
)


@dataclass
class Load:
    """An engine's figures after its requests. seen: samples with our own names and vLLM's. beside:
    samples with SGLang's, too."""

    seen: dict[str, float]
    beside: dict[str, float]
    usages: Sequence[m.Usage]

    @property
    def hits(self) -> list[m.HitBreakdown]:
        hits = [usage.hit for usage in self.usages]
        return [hit for hit in hits if hit is not None]

    @property
    def asked(self) -> int:
        return sum(usage.prompt_tokens for usage in self.usages)

    @property
    def usable(self) -> int:
        return sum(hit.usable_tokens for hit in self.hits)


def prompts() -> list[list[int]]:
    """Return prompts: the first ones share nothing, the others share a page."""
    apart = [prompt(60, seed=number) for number in range(APART)]
    head = prompt(64, seed=100)
    return [*apart, *([*head, *prompt(6, seed=200 + number)] for number in range(REQUESTS - APART))]


@pytest.fixture(scope="module")
def load() -> Load:
    engine = tiny_engine(slabs=SLABS, prefill_chunk_tokens=64)
    told = Exposition("vllm"), Exposition("sglang")
    asked = iter([submit(f"r{at}", ids, NEW_TOKENS) for at, ids in enumerate(prompts())])
    running = told_so_far = 0
    while True:
        for message in engine.said[told_so_far:]:
            for one in told:
                if isinstance(message, m.TokenOut):
                    one.count_tokens(1)
                else:
                    one.observe(message)  # type: ignore[arg-type]
            running -= isinstance(message, m.Finished)
        told_so_far = len(engine.said)
        while running < AT_ONCE and (new := next(asked, None)) is not None:
            for one in told:
                one.observe(new)
            engine.post(new)
            running += 1
        if not engine.step() and running == 0 and told_so_far == len(engine.said):
            break
    engine.assert_at_rest()
    usages = [engine.finished(f"r{number}").usage for number in range(REQUESTS)]
    report = NodeReport(engine.stats())
    seen, beside = (samples(one.text(report)) for one in told)
    return Load(seen, beside, usages)


def test_requests_gave_way(load: Load) -> None:
    """Check the load itself: without preempted requests, the other tests show nothing."""
    seen = load.seen
    assert seen["tasuki_retractions_total"] == seen["vllm:num_preemptions_total"] > 5
    assert seen["tasuki_cache_prompt_tokens_total"] > 1.2 * load.asked
    # A request that gave way finds its own computed tokens; no client counts this as a hit.
    assert seen["tasuki_cache_usable_tokens_total"] > 1.2 * load.usable


def test_hits_are_those_that_clients_were_told_of(load: Load) -> None:
    assert len(load.hits) == REQUESTS
    assert not any(hit.usable_tokens for hit in load.hits[:APART])
    assert load.seen["vllm:prefix_cache_hits_total"] == load.usable > 0
    assert load.seen["vllm:prefix_cache_queries_total"] == load.asked


def expected(load: Load) -> Counter[str]:
    """Return every counter of requests, and the count of every histogram of requests."""
    generated = sum(usage.completion_tokens for usage in load.usages)
    found = Counter(
        {
            "tasuki_requests_finished_total{reason=length}": REQUESTS,
            "tasuki_request_prompt_tokens_total": load.asked,
            "tasuki_request_usable_tokens_total": load.usable,
            "tasuki_generated_tokens_total": generated,
            "tasuki_looked_up_tokens_total": load.asked,
            "tasuki_looked_up_usable_tokens_total": load.usable,
            "vllm:prompt_tokens_total": load.asked,
            "vllm:generation_tokens_total": generated,
            "vllm:prefix_cache_queries_total": load.asked,
            "vllm:prefix_cache_hits_total": load.usable,
        }
    )
    for hit in load.hits:
        for cause, tokens in hit.causes.items():
            found[f"tasuki_request_lost_tokens_total{{cause={cause}}}"] += tokens
    for use in (use for usage in load.usages for use in usage.drafts):
        for place, (drafted, held) in enumerate(zip(use.drafted, use.accepted, strict=True), 1):
            labels = f"{{drafter={use.source},place={place}}}"
            found[f"tasuki_drafted_tokens_total{labels}"] += drafted
            found[f"tasuki_accepted_draft_tokens_total{labels}"] += held
    for spread in (
        *("tasuki_time_to_first_token", "tasuki_time_per_output_token", "tasuki_request_duration"),
        *("tasuki_queue", "tasuki_prefill", "vllm:time_to_first_token"),
        *("vllm:request_time_per_output_token", "vllm:e2e_request_latency"),
    ):
        found[f"{spread}_seconds_count"] = REQUESTS
    return found


def test_every_counter_of_requests_is_the_sum_over_usages(load: Load) -> None:
    """Compare every counter with the sum over usages, except counters in OF_EVENTS. A new counter
    must be a sum of usages or be listed there with a reason."""
    counts = {
        name: value
        for name, value in load.seen.items()
        if re.search(r"_(total|count)(\{|$)", name) and value and not OF_EVENTS.match(name)
    }
    assert counts == +expected(load)


def test_seconds_are_those_of_usages(load: Load) -> None:
    first = sum(usage.time_to_first_token for usage in load.usages)
    whole = sum(usage.seconds for usage in load.usages)
    seen = load.seen
    assert seen["tasuki_time_to_first_token_seconds_sum"] == pytest.approx(first)
    assert seen["tasuki_request_duration_seconds_sum"] == pytest.approx(whole)
    assert seen["tasuki_queue_seconds_sum"] + seen["tasuki_prefill_seconds_sum"] <= whole


def test_sglang_s_rate_is_that_of_usages(load: Load) -> None:
    seen = load.beside
    assert seen["sglang:num_retracted_requests_total"] == seen["tasuki_retractions_total"] > 5
    assert seen["sglang:cache_hit_rate"] == pytest.approx(load.usable / (load.asked))
    assert seen["sglang:cached_tokens_total"] == load.usable > 0
