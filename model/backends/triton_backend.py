"""The back end of a GPU: Triton kernels between matrix products, a set for prompts, one for steps.

Owns what all forwards share on the device: rotary angles and a second stream. Every choice of
kernel is made in model/backends/triton_prefill.py and model/backends/triton_decode.py, at import.
"""

from copy import copy

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.forward import Batch, DecodeBatch, Reduce, VerifyBatch, one_rank
from tasuki.model.ops.attention.long_context import warm
from tasuki.model.ops.attention.rope import rotary_cache
from tasuki.model.ops.linear.gemv import MOST_ROWS

from .triton_decode import DecodeScratch, TritonDecode, TritonRowDecode
from .triton_prefill import PrefillPlan, TritonPrefill
from .triton_verify import TritonVerify, VerifyScratch


class TritonBackend:
    """`Backend` for activations of `dtype` on one GPU."""

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        device: torch.device,
        reduce: Reduce = one_rank,
    ) -> None:
        """config: of one rank's heads and widths, as the weights are."""
        self._config = config
        self._dtype = dtype
        self._device = device
        self._reduce = reduce
        self._rotary = rotary_cache(config, config.max_position, device)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def beside(self) -> "TritonBackend":
        """Another, for forwards that run while this one's do: both read one table of angles."""
        other = copy(self)
        other._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return other

    def bind(self, batch: Batch) -> TritonPrefill:
        """batch is on the host."""
        plan = PrefillPlan.of(batch, self._config, self._dtype, self._device)
        return TritonPrefill(self._config, plan, self._rotary, self._side, self._reduce)

    def prepare(self) -> None:
        """Once on the thread that will run forwards: cuDNN plans its attention there, a plan for
        every size of context that can come up."""
        if self._dtype.itemsize == 2:
            torch.cuda.set_device(self._device)
            warm(self._config, self._config.max_position, self._dtype, self._device)

    def scratch(self, batch: int) -> DecodeScratch:
        """For decode steps of up to so many rows; all steps that share it share a stream."""
        return DecodeScratch.of(self._config, batch, self._device)

    def bind_decode(self, batch: DecodeBatch, scratch: DecodeScratch) -> TritonDecode:
        operators = TritonRowDecode if batch.size <= MOST_ROWS else TritonDecode
        return operators(self._config, batch, scratch, self._rotary, self._side, self._reduce)

    def verify_scratch(self, batch: int, tokens: int) -> VerifyScratch:
        """For up to so many rows of up to so many tokens; all steps that share it share a
        stream."""
        return VerifyScratch.of(self._config, batch, tokens, self._dtype, self._device)

    def bind_verify(self, batch: VerifyBatch, scratch: VerifyScratch) -> TritonVerify:
        return TritonVerify(self._config, batch, scratch, self._rotary, self._side, self._reduce)
