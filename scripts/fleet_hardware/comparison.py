"""A recorded run beside the simulator at the same workload, and how far apart they are.

What the simulator is given: the measured prefills of the model, and of the record its workload, its
arena and the mean forward of its decode node. Nothing is fitted to what is compared. A state stands
behind an answer's last token but one, if the answer came back to the prefill node, and else at the
last page's end inside the prompt: then the next turn computes the tokens between.
"""

from dataclasses import asdict
from typing import Any

from tasuki.bench.errors import BenchError
from tasuki.bench.fleet.node_model import measured
from tasuki.bench.fleet.settings import FleetSettings
from tasuki.bench.fleet.simulate import simulate
from tasuki.bench.load.client.loads import Agents
from tasuki.model.known_models import PUBLISHED
from tasuki.pycache.layout import PAGE_TOKENS

from .agents_trace import agents_trace
from .record import Record

_INDEX_SECONDS = 0.25
"""Between two changes that a prefill node sends of what is usable on it."""

Row = dict[str, Any]


def compare(record: Record) -> Row:
    """points and shares: the simulation less the hardware. points_not_returned: what answers that
    were not pulled take from the hardware's hit rate; points_left: apart without those. TTFT of a
    pair alone: a simulated node answers nothing beside its prefills. Raises BenchError where
    the workload is not the recorded one, or nobody measured prefills of its model and device."""
    _check_measured(record)
    trace, begin = agents_trace(record.agents, record.warm, PUBLISHED[record.model]["vocab_size"])
    counted = [each for each in trace.requests if each.timestamp_ms >= 1e3 * begin]
    if len(counted) != record.requests:
        raise BenchError(
            f"{record.name}: {record.requests} requests were recorded and its settings make "
            f"{len(counted)}: give a run in which every session came to its end"
        )
    prompt_tokens = sum(each.prompt_tokens for each in counted)
    simulated = simulate(trace, _settings(record, begin))
    cached = round(simulated["hit_rate"] * prompt_tokens)
    points = 100 * (cached - record.cached_tokens) / prompt_tokens
    row: Row = {
        **asdict(record),
        "continued_turns": continued_turns(record.agents),
        "prompt_tokens": prompt_tokens,
        "hit_rate": record.cached_tokens / prompt_tokens,
        "simulated": {
            "cached_tokens": cached,
            "hit_rate": cached / prompt_tokens,
            "ttft": {share: simulated[f"ttft_{share}_seconds"] for share in record.ttft},
            "ttft_mean_seconds": simulated["ttft_mean_seconds"],
            "prefill_seconds": simulated["prefill_seconds"],
            "prefill_source": simulated["prefill_source"],
        },
        "points_apart": points,
    }
    if record.pulls is not None:
        missing = 100 * tokens_not_returned(record.agents, record.pulls) / prompt_tokens
        row |= {"points_not_returned": missing, "points_left": points - missing}
        row["ttft_apart"] = {
            share: row["simulated"]["ttft"][share] / seconds - 1
            for share, seconds in record.ttft.items()
        }
    return row


def _check_measured(record: Record) -> None:
    found = measured(record.model)
    if found is None or found.device != record.device:
        raise BenchError(
            f"{record.name}: prefills of {record.model} on {record.device} were not measured: add "
            "them to bench/fleet/node_model.py"
        )


def _settings(record: Record, begin: float) -> FleetSettings:
    return FleetSettings(
        model=record.model,
        nodes=1,
        gb=record.arena_mib / 1024,
        route="cost",
        policy="auto",
        streams=1,
        arrivals="closed",
        seed=0,
        deciders=1,
        seconds=1e9,
        warm_up=begin,
        tflops=None,
        fixed_ms=0.0,
        itl_ms=1e3 * record.token_seconds,
        report_seconds=1.0,
        report_delay=0.0,
        index_seconds=_INDEX_SECONDS,
        lost=0.0,
        dead=0.0,
        link_gb=25.0,
    )


def continued_turns(agents: Agents) -> int:
    """Those whose answer a later one continues."""
    return agents.sessions * (agents.turns - 1)


def tokens_behind_answers(agents: Agents) -> int:
    """That all continued turns together find only if every answer came back."""
    a_session = 0
    for turn in range(agents.turns - 1):
        prompt = agents.prefix + agents.turn + turn * (agents.turn + agents.answer)
        a_session += prompt + agents.answer - 1 - (prompt - 1) // PAGE_TOKENS * PAGE_TOKENS
    return agents.sessions * a_session


def tokens_not_returned(agents: Agents, returned: int) -> float:
    """Of so many answers that came back, in the mean over which ones they were."""
    return tokens_behind_answers(agents) * (1 - returned / continued_turns(agents))
