"""The back end for a GPU: Triton kernels and matrix products, one set of them for prompts and one
for decode steps.

It owns the data shared by all forwards on the device: rotary angles and a second stream.
model/backends/triton_prefill.py and model/backends/triton_decode.py choose the kernels, at import.
"""

from copy import copy
from dataclasses import replace

import torch
from torch import Tensor

from tasuki.model.attention_split import AttentionSplit
from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import (
    BF16_STEPS,
    Activations,
    Batch,
    DecodeBatch,
    PhaseActivations,
    PicturesUnsupported,
    Reduce,
    VerifyBatch,
    one_rank,
)
from tasuki.model.ops.attention.long_context import warm
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.ops.attention.spans.attention import SpanWorkspace
from tasuki.model.ops.linear.gemv import MOST_ROWS

from .triton_decode import DecodeScratch, TritonDecode, TritonRowDecode
from .triton_prefill import PrefillPlan, TritonPrefill
from .triton_verify import TritonVerify, VerifyScratch


class TritonBackend:
    """`Backend` for activations of `dtype` on one GPU."""

    def __init__(
        self,
        config: DeltaNetConfig,
        dtype: torch.dtype,
        device: torch.device,
        reduce: Reduce = one_rank,
        axes: Tensor | None = None,
        activations: PhaseActivations = BF16_STEPS,
    ) -> None:
        """config: the model's config with one rank's heads and widths, like the weights. reduce:
        adds up the ranks' partial sums. axes: as in RotaryAngles. activations: their form in each
        phase."""
        self._config = config
        self._dtype = dtype
        self._device = device
        self._reduce = reduce
        self._activations = activations
        self._rotary = rotary_cache(config, config.max_position, device)
        self._axes = None if axes is None else axes.to(device, torch.int32)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @property
    def tile_lengths(self) -> tuple[int, ...]:
        """Return the numbers of tokens from which on FP8 rows have other tiles; none without
        them."""
        return (17, 129) if self._activations.prompts is Activations.ROWS else ()

    @property
    def sees_pictures(self) -> bool:
        """Return true if forwards may have rows of pictures, and three rotary positions a token."""
        return self._axes is not None

    def beside(self) -> "TritonBackend":
        """Return another back end, for forwards in parallel with this one's. It has a second stream
        of its own and shares this one's rotary angles."""
        other = copy(self)
        other._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return other

    def bind(self, batch: Batch) -> TritonPrefill:
        """Return the operators for a batch. The batch's tensors are in host memory. Raises
        PicturesUnsupported."""
        if self._axes is None and (batch.rope is not None or batch.pictures):
            raise PicturesUnsupported(
                "this model has no tower here, and its prompt has pictures: serve them with one "
                "fused node of one rank, with --vision auto"
            )
        plan = PrefillPlan.of(
            *(batch, self._config, self._dtype, self._device, self._axes, self._activations)
        )
        return TritonPrefill(
            *(self._config, plan, self._rotary, self._side, self._reduce, self._activations)
        )

    def prepare(self) -> None:
        """Prepare cuDNN's attention plans, one for every possible context size. Call it once, on
        the thread of the forwards."""
        if self._dtype.itemsize == 2:
            torch.cuda.set_device(self._device)
            warm(self._config, self._config.max_position, self._dtype, self._device)

    def scratch(self, batch: int, split: AttentionSplit) -> DecodeScratch:
        """Return scratch memory for decode steps of up to `batch` sequences. All steps with this
        memory must use one stream. split: division of the steps' keys."""
        spans = self._spans(batch, 1, split)
        return replace(DecodeScratch.of(self._config, batch, self._device), spans=spans)

    def _spans(self, batch: int, tokens: int, split: AttentionSplit) -> SpanWorkspace | None:
        """Return memory for steps by spans; None for even shares."""
        if split is AttentionSplit.SHARES:
            return None
        return SpanWorkspace.of(self._config, batch, tokens, self._device)

    def bind_decode(self, batch: DecodeBatch, scratch: DecodeScratch) -> TritonDecode:
        activations = self._activations.steps
        is_row = batch.size <= MOST_ROWS and activations is not Activations.ROWS
        operators = TritonRowDecode if is_row else TritonDecode
        if self._axes is None:
            # Text alone keeps its own kernel, without a load of deltas.
            batch = replace(batch, rope_deltas=None)
        return operators(
            *(self._config, batch, scratch, self._rotary, self._side, self._reduce, activations)
        )

    def verify_scratch(self, batch: int, tokens: int, split: AttentionSplit) -> VerifyScratch:
        """Return scratch memory for verification steps of up to `batch` sequences with up to
        `tokens` tokens each. All steps with this memory must use one stream. split: division of
        the steps' keys."""
        found = VerifyScratch.of(self._config, batch, tokens, self._dtype, self._device)
        return replace(found, spans=self._spans(batch, tokens, split))

    def bind_verify(self, batch: VerifyBatch, scratch: VerifyScratch) -> TritonVerify:
        if self._axes is None:
            batch = replace(batch, rope_deltas=None)
        return TritonVerify(
            *(self._config, batch, scratch, self._rotary, self._side, self._reduce),
            self._activations.steps,
        )
