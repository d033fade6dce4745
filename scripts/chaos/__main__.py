"""`python -m scripts.chaos WORKLOAD [--fault FAULT] [--seconds N] [--seed N]`: searches for
failures under faults.

A workload sends requests to real daemons or parts of one, while faults are injected. `WORKLOAD
--help` lists its flags. The seed is printed first; the same seed repeats the same requests and
faults in the same order. Exit status 0 only if no forbidden result was seen.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from scripts.chaos.faults import UnknownFault
from scripts.common.command import concluded, settings_of, show
from scripts.common.tally import Tally


@dataclass(frozen=True)
class Workload:
    """One workload of the command. about: one line of help. module: name of its module. settings,
    run: names in this module, of its Settings class and its function."""

    about: str
    module: str
    settings: str
    run: str = "run"


WORKLOADS = {
    "soak": Workload("Random conversations under every fault.", "soak", "SoakSettings", "soak"),
    "stream": Workload("New requests while links are lost.", "stream", "StreamSettings", "stream"),
    "load": Workload("Many conversations at once.", "load", "LoadSettings"),
    "sweep": Workload("SIGKILL at every place of a hand-over.", "sweep", "SweepSettings"),
    "tiers": Workload("Loads from tiers while copies fail.", "tiers", "TiersSettings"),
    "tree": Workload("Random lives of the cache's tree.", "tree", "TreeSettings"),
    "attack": Workload("Strangers, tenants and rogue peers.", "attack", "AttackSettings"),
}


def main(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in WORKLOADS:
        print(__doc__)
        for name, workload in WORKLOADS.items():
            print(f"{name:<8} {workload.about}")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    name, *flags = argv
    workload = WORKLOADS[name]
    # Imported here, because each workload needs seconds for its own imports.
    module = import_module(f"scripts.chaos.{workload.module}")
    kind = getattr(module, workload.settings)
    run: Callable[[Any, Callable[[str], None]], Tally] = getattr(module, workload.run)
    settings = settings_of(f"scripts.chaos {name}", workload.about, kind, flags)
    show(f"chaos: {settings}")
    try:
        return concluded(f"chaos {name}", settings.seed, run(settings, show))
    except UnknownFault as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
