"""`python -m scripts.lost_links --requests 10000`: a stream of new requests while links are lost.

Prints its seed first; the same seed asks and breaks the same things in the same order. Exit status
0 only where every request was answered with the right tokens and nothing is held afterwards.
"""

import sys

from scripts.command import concluded, settings_of, show
from scripts.lost_links.stream import StreamSettings, play


def main() -> int:
    settings = settings_of("scripts.lost_links", "A stream of requests.", StreamSettings)
    show(f"lost links: {settings}")
    return concluded("lost links", settings.seed, play(settings, show))


if __name__ == "__main__":
    sys.exit(main())
