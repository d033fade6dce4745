"""`python -m scripts.soak --seconds 3600`: random requests and faults against real daemons.

Prints its seed first; the same seed asks and breaks the same things in the same order. Exit status
0 only with no wrong token, no leak and no unexpected error.
"""

import sys

from scripts.command import concluded, settings_of, show
from scripts.soak.rounds import SoakSettings, soak


def main() -> int:
    settings = settings_of("scripts.soak", "Random requests and faults.", SoakSettings)
    show(f"soak: {settings}")
    return concluded("soak", settings.seed, soak(settings, show))


if __name__ == "__main__":
    sys.exit(main())
