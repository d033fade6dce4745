"""The sets of goldens by which families are tested, and engines over them.

A set is a folder beside the repository with a checkpoint and its goldens. It counts once its family
is registered. The first set of a family is the one whose cases run in `make test`.
"""

import json
from functools import cache

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.model.families.registry import FAMILIES
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS

from .engines import Lone, engine_config
from .goldens import BESIDE, Golden, cases_of, reference_dir

_SETS = ("qwen3-next-tiny", "kimi-linear-tiny", "qwen4-exp-tiny", "tiny-dense")


def _is_served(name: str) -> bool:
    file = reference_dir(name) / "config.json"
    if not file.exists():
        return False
    found = json.loads(file.read_text())["model_type"]
    return any(found in family.model_types for family in FAMILIES)


SETS = tuple(name for name in _SETS if (BESIDE / name).is_dir() and _is_served(name))


@cache
def _parts(name: str, chunk: int, draft_layer: str, drafter: str | None) -> EngineParts:
    settings: dict[str, object] = {"prefill_chunk_tokens": chunk, "draft_layer": draft_layer}
    settings["drafter"] = drafter
    return build_parts(engine_config(reference_dir(name), **settings))


def cold_engine(
    name: str,
    chunk: int = 512,
    draft_layer: str = "off",
    drafter: str | None = None,
    **changes: object,
) -> Lone:
    """Return an engine of a set on the CPU, with an empty cache. chunk: tokens of a prompt in a
    forward. drafter: folder of a block drafter."""
    settings = {"prefill_chunk_tokens": chunk, "draft_layer": draft_layer, "drafter": drafter}
    config = engine_config(reference_dir(name), **settings | changes)
    engine = Lone(config, parts=_parts(name, chunk, draft_layer, drafter))
    engine.flush()
    return engine


def greedy_in_pieces(name: str, case: Golden, size: int) -> list[int]:
    """Return a case's answer by the model alone. Its prompt is computed in forwards of `size`
    tokens, which read one slot and write another."""
    parts = _parts(name, 512, "off", None)
    layout, most = parts.layout, len(case.prompt) + len(case.greedy)
    count = -(-most // PAGE_TOKENS)
    slabs = -(-count // layout.pages_per_slab)
    arena = Arena(layout, slabs + 2)
    arena.bytes.fill_(0xFF)
    pages = [
        slab * layout.blocks_per_slab + page
        for slab in range(slabs)
        for page in reversed(range(layout.pages_per_slab))
    ][:count]
    slots = [slabs, slabs + 1]
    start = slots[0] * layout.slab_bytes
    arena.bytes[start : start + layout.slot_bytes] = 0
    done, answer = 0, list[int]()
    pieces = [case.prompt[at : at + size] for at in range(0, len(case.prompt), size)]
    while len(answer) < len(case.greedy):
        tokens = pieces.pop(0) if pieces else answer[-1:]
        before = (*case.prompt, *answer)[:done]
        item = SequenceSlice(tokens, done, pages, *slots, ids_before=before)
        logits = parts.model.forward(Batch.pack([item]), arena, NullHooks())
        slots.reverse()
        done += len(tokens)
        if not pieces:
            answer.append(int(logits[0].argmax()))
    return answer


def longest(name: str) -> Golden:
    """Return the golden with the longest prompt of a set."""
    return max(cases_of(name).values(), key=lambda case: len(case.prompt))
