"""The settings of `tasuki ray`.

Also counts the ranks in a node's flags, and checks Ray's GPUs for it: one for each rank. Pure.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, fields

from tasuki.utils.options import option


@dataclass(frozen=True)
class RayConfig:
    address: str = option("auto", "address of the Ray cluster, as for ray.init")
    prefill: int = option(1, "prefill nodes")
    decode: int = option(1, "decode nodes")
    cpus: float = option(1.0, "CPUs of each node")
    gpus: float = option(0.0, "GPUs of each node, of one machine")
    prefill_gpus: float | None = option(
        None, "GPUs of each prefill node; by default as many as the others"
    )
    prefill_flags: str = option("", "more flags of prefill daemons, split as by a shell")
    strategy: str = option(
        "SPREAD",
        "how nodes lie over machines",
        ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK"),
    )
    host: str = option("", "bind address of each node; none: Ray's address of its machine")
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
        """Return the flags of a daemon of this role: common, then its own. flags: flags common to
        all daemons."""
        return [*flags, *(shlex.split(self.prefill_flags) if role == "prefill" else [])]

    def gpus_of(self, role: str) -> float:
        given = self.prefill_gpus if role == "prefill" else None
        return self.gpus if given is None else given

    def gpus_flag(self, role: str) -> str:
        """Return the name of the flag with the GPU count of this role, the count returned by
        gpus_of()."""
        own = role == "prefill" and self.prefill_gpus is not None
        return "--prefill-gpus" if own else "--gpus"


class RayNodeError(ValueError):
    """Nodes would not start with the given flags. The message names the fix."""


def asked(name: str, flags: Sequence[str], default: str) -> str:
    """Return the value of the engine setting `name`, from the last matching flag of a daemon;
    `default` without one."""
    # It loads torch.
    from tasuki.engine.config import EngineConfig

    (setting,) = (item for item in fields(EngineConfig) if item.name == name)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    spelt = ("--" + name.replace("_", "-"), *setting.metadata.get("aliases", ()))
    parser.add_argument(*spelt, dest="value", default=default)
    return str(parser.parse_known_args(list(flags))[0].value)


def check_nodes(config: RayConfig, flags: Sequence[str]) -> None:
    """Check the GPUs of each role with several ranks: one a rank. flags: flags common to all
    daemons. Raises RayNodeError."""
    for role in ("prefill", "decode"):
        own = config.flags_of(role, flags)
        ranks = asked("tensor_parallel", own, "1")
        if ranks == "1":
            continue
        if config.plan:
            raise RayNodeError(
                f"--tensor-parallel {ranks}: nodes of several ranks keep their roles; leave "
                "--plan out"
            )
        gpus = config.gpus_of(role)
        if asked("device", own, "cpu") == "cuda" and f"{gpus:g}" != ranks:
            raise RayNodeError(
                f"a {role} node has --tensor-parallel {ranks}, a GPU for each, and is given "
                f"{gpus:g}: give {config.gpus_flag(role)} {ranks}"
            )
