"""Several pieces of one call's work on an event loop."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any


async def together(works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """All of them at once; what one raises ends the others, and is raised. They have ended when it
    returns."""
    if len(works) == 1:
        await works[0]
        return
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
