"""`tasuki ray`, where Ray is installed: the command itself is in ray_fleet.py."""

import importlib
import importlib.util
from collections.abc import Sequence


class RayMissing(RuntimeError):
    """Ray is wanted and not installed; the message has the mend."""


def main(argv: Sequence[str]) -> int:
    """Raises RayMissing."""
    if importlib.util.find_spec("ray") is None:
        raise RayMissing("Ray is not installed: pip install 'tasuki[ray]'")
    return int(importlib.import_module(".ray_fleet", __package__).main(argv))
