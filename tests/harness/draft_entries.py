"""What an engine has kept for its draft layer, beside what one forward of the CPU path keeps."""

import numpy as np
import torch

from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.pycache.arena import run_copies
from tests.harness.engines import Lone
from tests.harness.goldens import Request, Workspace


def entries(kv: torch.Tensor, pages: list[int], tokens: int) -> torch.Tensor:
    """[2, kv_heads, positions 1 to tokens - 1, head_dim] on the host."""
    return kv[pages].cpu().permute(2, 1, 0, 3, 4).flatten(2, 3)[:, :, 1:tokens]


def assert_kept_as_by_one_forward(
    engine: Lone, tokens: list[int], oracle: Qwen35Model | None = None
) -> int:
    """How many of the tokens' states the engine has; all that goes with that one is right. oracle:
    the engine's model on the CPU, by default itself."""
    cache, arena = engine.engine._cache, engine.parts.arena
    allocation = cache.allocate(
        np.asarray(tokens, dtype=np.int32), capacity_tokens=len(tokens), working_slots=1
    )
    assert allocation is not None
    run_copies(arena, cache.take_copies())
    kept, slot = allocation.cached_tokens, allocation.working_slots[0]
    if not kept:
        cache.release(allocation)
        return 0
    one = Request(Workspace(oracle or engine.parts.model), kept)
    one.forward(tokens[:kept])
    other = one.workspace.arena
    found = entries(arena.kv[-1], allocation.pages.tolist(), kept)
    expected = entries(other.kv[-1], one.pages, kept)
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    carried = other.carry[0][one.slots[0]]
    torch.testing.assert_close(arena.carry[0][slot].cpu(), carried, atol=2e-4, rtol=0)
    cache.release(allocation)
    return kept
