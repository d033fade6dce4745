"""One trace on real daemons and in the simulator, and how far apart their figures are."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tasuki.bench.fleet.node_model import NodeModel
from tasuki.bench.fleet.settings import FleetSettings
from tasuki.bench.fleet.simulate import simulate
from tasuki.bench.fleet.workload import Workload
from tasuki.bench.replay.prompts import Texts
from tasuki.bench.replay.trace import Trace
from tasuki.cli.embedded import embedded_model
from tasuki.model.flops import PrefillFlops
from tasuki.model.known_models import published_or_folder

from .measured import Rates, figures, rates
from .nodes import POLICY, TwoByTwo
from .player import Played, Player

_VOCABULARY = 2000
"""Below the special tokens of the embedded model."""
_COMPUTE_ALL = ("--local-prefill-tokens", "0")
_NO_PULLS = ("--route", "fixed", "--pull-tokens", str(1 << 30))
_INDEX_SECONDS = 0.25
"""Between two changes that a prefill node sends of what is usable on it."""


@dataclass(frozen=True)
class Asked:
    """factor, slower, answer_tokens: as shortened() has them. arena_mib: of each daemon. pulls:
    whether prefill nodes fetch what decode nodes hold. kill: a prefill node, halfway."""

    route: Literal["cost", "fewest-rooms"]
    factor: int
    slower: float
    answer_tokens: int
    arena_mib: int
    pulls: bool
    kill: bool


def compare(trace: Trace, asked: Asked) -> dict[str, Any]:
    """trace: shortened. points_apart: FLOPs saved by the daemons less those of the simulation,
    which has no death in it."""
    played = _play(trace, asked)
    learnt = rates(played)
    folder = embedded_model()
    config = published_or_folder(str(folder))
    flops = PrefillFlops.for_model(config)
    layout = config.cache_layout("float32", "float32", "float32")
    model = NodeModel(layout, flops, learnt.prefill, "of the daemons of this run")
    daemons = figures(played, flops)
    simulated = simulate(trace, _settings(folder.name, asked, learnt), model)
    return {
        "trace": trace.name,
        "turns": len(trace.requests),
        **asdict(asked),
        "prompt_tokens": sum(each.prompt_tokens for each in trace.requests),
        "answer_tokens_all": sum(each.answer_tokens for each in trace.requests),
        "points_apart": 100 * (daemons["flops_saved"] - simulated["flops_saved"]),
        "daemons": daemons,
        "simulated": simulated,
    }


def _play(trace: Trace, asked: Asked) -> list[Played]:
    prefill = () if asked.pulls else _NO_PULLS
    decode = ("--route", asked.route, *_COMPUTE_ALL)
    with TwoByTwo(("--route", "auto", *prefill), decode, asked.arena_mib) as nodes:
        workload = Workload(trace, 1, "recorded", 0.0, 0)
        halfway: Callable[[], None] | None = nodes.kill_one if asked.kill else None
        return Player(nodes.decode, workload, Texts(_VOCABULARY), halfway).play()


def _settings(model: str, asked: Asked, learnt: Rates) -> FleetSettings:
    return FleetSettings(
        model=model,
        nodes=2,
        gb=asked.arena_mib / 1024,
        route=asked.route,
        policy=POLICY,
        streams=1,
        arrivals="recorded",
        seed=0,
        deciders=2,
        seconds=1e9,
        warm_up=0.0,
        tflops=None,
        fixed_ms=0.0,
        itl_ms=1e3 * learnt.token_seconds,
        report_seconds=1.0,
        report_delay=0.0,
        index_seconds=_INDEX_SECONDS,
        lost=0.0,
        dead=0.0,
        link_gb=25.0,
    )
