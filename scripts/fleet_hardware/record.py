"""A run of `tasuki bench serving` with agents, as its file of docs/results has it."""

import json
import shlex
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.bench.errors import BenchError
from tasuki.bench.load.client.loads import Agents

_SHARES = ("p50", "p95", "p99")


@dataclass(frozen=True)
class Record:
    """pair: one prefill and one decode node; else one fused node. warm: how often the common
    prefix was asked for before. arena_mib: of each node. token_seconds: mean forward of the node
    that answers. ttft: quantiles by p50, p95, p99, seconds, seen by clients over HTTP; exposed: of
    the hand-over, likewise, where there was one. pulls: answers' states that came back to the
    prefill node. prompts_a_forward: of the prefill node, in the mean."""

    name: str
    pair: bool
    agents: Agents
    warm: int
    model: str
    arena_mib: int
    device: str
    commit: str
    date: str
    requests: int
    cached_tokens: int
    token_seconds: float
    ttft: dict[str, float]
    exposed: dict[str, float] | None
    pulls: int | None
    prompts_a_forward: float | None


def read_record(path: Path) -> Record:
    """Raises BenchError where the file holds no such run, or one in which a request failed."""
    try:
        return _record(path.stem, json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(
            f"{path}: is no run of agents by `tasuki bench serving` ({error!r}): give a file that "
            "its --out wrote"
        ) from error


def _record(name: str, document: dict[str, Any]) -> Record:
    asked, host = document["settings"], document["host"]
    pair = asked["pair"]
    if asked["free_model"] or not (pair or asked["agents"]):
        raise ValueError("it has the free model, or no agents")
    if document["whole"] != document["requests"]:
        raise ValueError(f"{document['requests'] - document['whole']} requests were not answered")
    sizes = ("sessions", "turns", "prefix", "turn_tokens", "turn_answer")
    forwards = document["prefill_node"]["steps"] if pair else None
    return Record(
        name=name,
        pair=pair,
        agents=Agents(*(asked[size] for size in sizes), asked["seed"]),
        warm=asked["warm"],
        model=asked["model"],
        arena_mib=_arena_mib(f"{asked['node_flags']} {asked['prefill_flags']}"),
        device=host["device"],
        commit=host["commit"][:12],
        date=host["date"],
        requests=document["requests"],
        cached_tokens=document["cached_tokens"],
        token_seconds=document["step_ms"] / 1e3,
        ttft=_seconds(document["ttft_ms"]),
        exposed=_seconds(document["exposed_ms"]) if pair else None,
        pulls=document["handovers"]["pulls"] if pair else None,
        prompts_a_forward=document["requests"] / forwards if forwards else None,
    )


def _arena_mib(flags: str) -> int:
    """Of the prefill node, whose flags are all of these."""
    parser = ArgumentParser(exit_on_error=False, add_help=False)
    parser.add_argument("--arena-mib", type=int)
    found: int | None = parser.parse_known_args(shlex.split(flags))[0].arena_mib
    if found is None:
        raise ValueError("its flags name no --arena-mib")
    return found


def _seconds(quantiles_ms: dict[str, float]) -> dict[str, float]:
    return {share: quantiles_ms[share] / 1e3 for share in _SHARES}
