"""`tasuki ray`: its settings. fleet.py does the work and is imported only where Ray is."""

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.cli.planner.planner_config import PlannerConfig
from tasuki.utils.config.flags import FlagParser
from tasuki.utils.config.options import option


class RayMissing(RuntimeError):
    """Ray is wanted and not installed; the message has the mend."""


@dataclass(frozen=True)
class RayConfig:
    address: str = option("auto", "of the Ray cluster, as ray.init takes it")
    prefill: int = option(1, "prefill nodes")
    decode: int = option(1, "decode nodes")
    cpus: float = option(1.0, "CPUs that each node is given")
    gpus: float = option(0.0, "GPUs that each node is given")
    strategy: str = option(
        "SPREAD",
        "how nodes lie over machines",
        ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"),
    )
    host: str = option("", "address that each node binds; none: Ray's address of its machine")
    poll_seconds: float = option(1.0, "between two looks at every node")
    plan: bool = option(
        False, "nodes come, go and change their roles as demand asks; else they stay as they are"
    )

    def __post_init__(self) -> None:
        if self.prefill < 0 or self.decode < 1:
            raise ValueError("give at least one decode node, and no fewer than 0 prefill nodes")


def main(argv: Sequence[str]) -> int:
    """Raises RayMissing, PlannerConfigError."""
    parser = FlagParser("tasuki ray", "Nodes on the machines of a Ray cluster.")
    parser.add_argument("flags", nargs="*", help="of every daemon, behind --")
    parser.add_config(RayConfig)
    parser.add_config(PlannerConfig)
    values = parser.parse_args(argv)
    config, planner = parser.build(RayConfig, values), parser.build(PlannerConfig, values)
    if importlib.util.find_spec("ray") is None:
        raise RayMissing("Ray is not installed: pip install 'tasuki[ray]'")
    if config.plan:
        planned = importlib.import_module(".planned_fleet", __package__)
        planned.supervise(config, planner, values.flags)
    else:
        importlib.import_module(".fleet", __package__).supervise(config, values.flags)
    return 0
