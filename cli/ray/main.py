"""`tasuki ray`: its settings. fleet.py does the work and is imported only where Ray is."""

import importlib
import importlib.util
import shlex
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
    gpus: float = option(0.0, "GPUs that each node is given, of one machine")
    prefill_gpus: float | None = option(
        None, "GPUs that each prefill node is given; by default as many as the others"
    )
    prefill_flags: str = option(
        "", "more flags of prefill daemons, which may have other sizes, as a shell splits them"
    )
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
        if self.plan and (self.prefill_flags or self.prefill_gpus is not None):
            raise ValueError(
                "--plan gives nodes other roles: leave --prefill-flags and --prefill-gpus out"
            )

    def flags_of(self, role: str, flags: Sequence[str]) -> list[str]:
        """A daemon's of that role. flags: every daemon's."""
        return [*flags, *(shlex.split(self.prefill_flags) if role == "prefill" else [])]

    def gpus_of(self, role: str) -> float:
        given = self.prefill_gpus if role == "prefill" else None
        return self.gpus if given is None else given

    def gpus_flag(self, role: str) -> str:
        """The one that decides gpus_of()."""
        own = role == "prefill" and self.prefill_gpus is not None
        return "--prefill-gpus" if own else "--gpus"


def main(argv: Sequence[str]) -> int:
    """Raises RayMissing, RayNodeError, PlannerConfigError."""
    parser = FlagParser("tasuki ray", "Nodes on the machines of a Ray cluster.")
    parser.add_argument("flags", nargs="*", help="of every daemon, behind --")
    parser.add_config(RayConfig)
    parser.add_config(PlannerConfig)
    values = parser.parse_args(argv)
    config, planner = parser.build(RayConfig, values), parser.build(PlannerConfig, values)
    importlib.import_module(".node_size", __package__).check_nodes(config, values.flags)
    if importlib.util.find_spec("ray") is None:
        raise RayMissing("Ray is not installed: pip install 'tasuki[ray]'")
    if config.plan:
        planned = importlib.import_module(".planned_fleet", __package__)
        planned.supervise(config, planner, values.flags)
    else:
        importlib.import_module(".fleet", __package__).supervise(config, values.flags)
    return 0
