"""The back end of a GPU: Triton kernels between matrix products, a set for prompts, one for steps.

Owns the data shared by all forwards on the device: rotary angles and a second stream. Kernels are
chosen in model/backends/triton_prefill.py and model/backends/triton_decode.py, at import.
"""

from copy import copy

import torch

from tasuki.model.config import ModelConfig
from tasuki.model.forward import (
    Batch,
    DecodeBatch,
    PicturesUnsupported,
    Reduce,
    VerifyBatch,
    one_rank,
)
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
        """config: with one rank's heads and widths, like the weights."""
        self._config = config
        self._dtype = dtype
        self._device = device
        self._reduce = reduce
        self._rotary = rotary_cache(config, config.max_position, device)
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def beside(self) -> "TritonBackend":
        """Return another back end, for forwards in parallel with this one's. Both read one table of
        angles."""
        other = copy(self)
        other._side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return other

    def bind(self, batch: Batch) -> TritonPrefill:
        """Return the operators of a batch on the host. Raises PicturesUnsupported."""
        if batch.rope is not None or batch.pictures:
            raise PicturesUnsupported("a GPU sees no pictures as yet: serve them with --device cpu")
        plan = PrefillPlan.of(batch, self._config, self._dtype, self._device)
        return TritonPrefill(self._config, plan, self._rotary, self._side, self._reduce)

    def prepare(self) -> None:
        """Prepare cuDNN's attention plans, one for every possible size of context. Call it once on
        the thread of the forwards."""
        if self._dtype.itemsize == 2:
            torch.cuda.set_device(self._device)
            warm(self._config, self._config.max_position, self._dtype, self._device)

    def scratch(self, batch: int) -> DecodeScratch:
        """Return scratch memory for decode steps of up to `batch` rows. All its steps share a
        stream."""
        return DecodeScratch.of(self._config, batch, self._device)

    def bind_decode(self, batch: DecodeBatch, scratch: DecodeScratch) -> TritonDecode:
        operators = TritonRowDecode if batch.size <= MOST_ROWS else TritonDecode
        return operators(self._config, batch, scratch, self._rotary, self._side, self._reduce)

    def verify_scratch(self, batch: int, tokens: int) -> VerifyScratch:
        """Return scratch memory for up to `batch` rows of up to `tokens` tokens. All its steps
        share a stream."""
        return VerifyScratch.of(self._config, batch, tokens, self._dtype, self._device)

    def bind_verify(self, batch: VerifyBatch, scratch: VerifyScratch) -> TritonVerify:
        return TritonVerify(self._config, batch, scratch, self._rotary, self._side, self._reduce)
