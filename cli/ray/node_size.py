"""How many ranks a node's flags ask for, and whether what Ray gives it has a GPU for each. Pure."""

import argparse
from collections.abc import Sequence
from dataclasses import fields

from .config import RayConfig


class RayNodeError(ValueError):
    """Nodes of those flags would not start; the message has the mend."""


def asked(name: str, flags: Sequence[str], default: str) -> str:
    """The value of a setting of the engine, as the last of a daemon's flags gives it."""
    # It loads torch.
    from tasuki.engine.config import EngineConfig

    (setting,) = (item for item in fields(EngineConfig) if item.name == name)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    spelt = ("--" + name.replace("_", "-"), *setting.metadata.get("aliases", ()))
    parser.add_argument(*spelt, dest="value", default=default)
    return str(parser.parse_known_args(list(flags))[0].value)


def check_nodes(config: RayConfig, flags: Sequence[str]) -> None:
    """flags: of every daemon. Raises RayNodeError."""
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
