"""`tasuki dashboard`: one page for many nodes, from a separate process.

Polls the metrics of the configured nodes only. It has no engine.
"""

import asyncio
from collections.abc import Sequence

from tasuki.utils.flags import parse_config

from .config import FleetConfig


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki dashboard", "One page for many nodes.", argv, FleetConfig)
    # Imported after the check of the flags, because aiohttp takes half a second.
    from .serving import serve_page

    asyncio.run(serve_page(config))
    return 0
