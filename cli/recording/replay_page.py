"""`tasuki replay FILE`: the page of a recording, without the node.

Fills a history with the recording's events and serves it as a node does; there is no tree to ask.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tasuki.utils.config.flags import FlagParser

from .file_format import Recording


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki replay", "The page of a recording.")
    parser.add_argument("file", type=Path, help="of `tasuki record`")
    parser.add_argument("--bind", default="127.0.0.1:8080", help="HOST:PORT; port 0 picks one")
    parser.add_argument("--seconds", type=float, help="show only so much of its beginning")
    values = parser.parse_args(argv)
    recording = Recording.load(values.file)
    from .replayed import replayed, serve_page

    asyncio.run(serve_page(replayed(recording, values.seconds), values.bind))
    return 0
