"""One sequence of fixed tokens over a poisoned arena, and the distance of its logits from
others."""

import torch

from tasuki.engine.assembly.parts import EngineParts
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.pycache.arena import copy_slot
from tests.gpu.shapes import VOCAB

LENGTH = 330
TOKENS = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()
KEPT_SLOT = 2


class OneSequence:
    """One sequence on a model. done: number of forwarded tokens."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        arena = parts.arena
        arena.bytes.fill_(0xFF)
        arena.bytes[: arena.layout.slot_bytes].zero_()
        blocks = arena.layout.blocks_per_slab
        self.pages = [(3 + page) * blocks for page in range(-(-LENGTH // 64))]
        self.slot = self.done = 0

    def forward(self, count: int, *, mark: int | None = None, answer: bool = False) -> torch.Tensor:
        """Return logits [vocab] float32 on the host after `count` more tokens, of an answer or a
        prompt. mark: position of the state to keep."""
        marks = () if mark is None else ((mark, KEPT_SLOT),)
        tokens, slots = TOKENS[self.done : self.done + count], (self.slot, 1 - self.slot)
        item = SequenceSlice(tokens, self.done, self.pages, *slots, marks, stepped=answer)
        self.done += count
        self.slot = 1 - self.slot
        with torch.inference_mode():
            logits = self.parts.model.forward(Batch.pack([item]), self.parts.arena, NullHooks())
        return logits[0].float().cpu()

    def resume(self, at: int) -> None:
        """Continue from the state kept by a forward."""
        copy_slot(self.parts.arena, KEPT_SLOT, 0)
        self.slot, self.done = 0, at


def divergence(got: torch.Tensor, want: torch.Tensor) -> float:
    """Return and print the KL of `got` from `want`, in nats."""
    p, q = want.double().log_softmax(-1), got.double().log_softmax(-1)
    found = float((p.exp() * (p - q)).sum())
    print(f"{found:.5f} nats")
    return found
