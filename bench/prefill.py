"""`tasuki bench prefill`: from the Submit of a prompt that nobody has seen to its first token."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ..engine.config import option
from ..front.flags import parse_configs
from .config import BenchConfig
from .floors import measure_floors
from .host import describe_host
from .model_floor import ModelFloor
from .report import Report, Row
from .rig import Rig
from .workload import PREFILL_TARGETS


@dataclass(frozen=True)
class PrefillConfig:
    prompts: str = option("8192,50000", "tokens of each prompt, by commas")
    repeats: int = option(5, "other prompts of the same length; the median counts")

    def lengths(self) -> list[int]:
        return [int(text) for text in self.prompts.split(",")]


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench prefill", "Time cold prefills.", argv, BenchConfig, PrefillConfig
    )
    model = config.model_config()
    floors = measure_floors(config.torch_device, config.torch_dtype)
    report = Report(
        f"prefill {config.model}", describe_host(config.torch_device, config.commit), floors
    )
    print(report.head(), flush=True)
    rig = Rig(model, config.engine_config())
    floor = ModelFloor.of(model, rig.parts.layout, floors)
    for length in own.lengths():
        report.add(_row(config.model, length, _prefills(rig, length, own.repeats), floor))
    report.write(config.out_path)
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


def _row(model: str, length: int, seconds: Sequence[float], floor: ModelFloor) -> Row:
    limit = PREFILL_TARGETS.get((model, length))
    typical = median(seconds)
    return Row(
        f"prompt of {length} tokens, to its first token",
        typical,
        floor.prefill(length),
        target="" if limit is None else f"<= {limit:g} s",
        met=None if limit is None else typical <= limit,
        extra={"tokens/s": length / typical, "slowest s": max(seconds)},
    )
