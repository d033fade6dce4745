"""`tasuki ray`: reads its flags, and starts the fleet. Only the fleet's modules import Ray."""

import importlib.util
from collections.abc import Sequence

from tasuki.cli.planner.config import PlannerConfig
from tasuki.utils.flags import FlagParser

from .config import RayConfig, check_nodes


class RayMissing(RuntimeError):
    """Ray is needed and not installed; the message names the fix."""


def main(argv: Sequence[str]) -> int:
    """Run `tasuki ray`. Return 0 at its end. Raises RayMissing, RayNodeError,
    PlannerConfigError."""
    parser = FlagParser("tasuki ray", "Nodes on the machines of a Ray cluster.")
    parser.add_argument("flags", nargs="*", help="of every daemon, behind --")
    parser.add_config(RayConfig)
    parser.add_config(PlannerConfig)
    values = parser.parse_args(argv)
    config, planner = parser.build(RayConfig, values), parser.build(PlannerConfig, values)
    check_nodes(config, values.flags)
    if importlib.util.find_spec("ray") is None:
        raise RayMissing("Ray is not installed: pip install 'tasuki[ray]'")
    from . import fleet

    if config.plan:
        fleet.supervise_planned(config, planner, values.flags)
    else:
        fleet.supervise(config, values.flags)
    return 0
