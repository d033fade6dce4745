"""`tasuki bench prefill`: from the Submit of a prompt that nobody has seen to its first token."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tasuki.bench.measure.model_floor import ModelFloor
from tasuki.bench.measure.report import Row
from tasuki.bench.measure.rig import Rig
from tasuki.utils.config.flags import parse_configs
from tasuki.utils.config.options import option

from .config import BenchConfig
from .tick_cost import tick_cost
from .transformers_peer import prefill_seconds
from .workload import MOST_TICK_COST, PREFILL_PEER_RATIO, PREFILL_TARGETS


@dataclass(frozen=True)
class PrefillConfig:
    prompts: str = option("8192,50000", "tokens of each prompt, by commas")
    repeats: int = option(5, "other prompts of the same length; the median counts")
    peer: bool = option(False, "time transformers on the same lengths as well")

    def lengths(self) -> list[int]:
        return [int(text) for text in self.prompts.split(",")]


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench prefill", "Time cold prefills.", argv, BenchConfig, PrefillConfig
    )
    model = config.model_config()
    with config.reported(f"prefill {config.model}") as report:
        # Before the engine takes all memory.
        peers = {
            length: {"transformers": prefill_seconds(model, config.torch_device, length)}
            for length in own.lengths()
            if own.peer
        }
        engine = config.engine_config()
        rig = Rig(model, engine)
        floor = ModelFloor.of(model, rig.parts.layout, report.floors)
        for length in own.lengths():
            seconds = _prefills(rig, length, own.repeats)
            report.add(_row(config.model, length, seconds, floor, peers.get(length, {})))
        if config.device == "cuda":
            report.add(_tick_row(rig, min(own.lengths())))
            report.note(config.memory_note(engine))
    return 0


def _prefills(rig: Rig, length: int, repeats: int) -> list[float]:
    """Seconds to the first token; one prompt more goes ahead, untimed."""
    seconds = []
    for _ in range(1 + repeats):
        answer = rig.submit(rig.prompt(length), 1)
        rig.run()
        seconds.append(answer.first_token_seconds)
        rig.flush()
    return seconds[1:]


def _tick_row(rig: Rig, length: int) -> Row:
    cost = tick_cost(rig, length)
    return Row(
        f"forward of {length} tokens, ticking layer by layer",
        cost.ticked,
        target=f"< {MOST_TICK_COST:.0%} more than without ticks",
        met=cost.ticked < (1 + MOST_TICK_COST) * cost.plain,
        others={"without ticks": cost.plain},
        extra={"more %": 100 * (cost.ticked / cost.plain - 1)},
    )


def _row(
    model: str,
    length: int,
    seconds: Sequence[float],
    floor: ModelFloor,
    peers: dict[str, float],
) -> Row:
    limit = PREFILL_TARGETS.get((model, length))
    typical = median(seconds)
    targets = [] if limit is None else [(f"<= {limit:g} s", typical <= limit)]
    for name, peer in peers.items():
        targets.append((f">= {PREFILL_PEER_RATIO:g}x {name}", peer >= PREFILL_PEER_RATIO * typical))
    return Row(
        f"prompt of {length} tokens, to its first token",
        typical,
        floor.prefill(length),
        target=", ".join(text for text, _ in targets),
        met=all(met for _, met in targets) if targets else None,
        others=peers,
        extra={"tokens/s": length / typical, "slowest s": max(seconds)},
    )
