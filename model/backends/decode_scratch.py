"""What decode steps share on a GPU."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.model.ops.attention.decode import DecodeWorkspace


@dataclass(frozen=True)
class DecodeScratch:
    """What decode steps of up to `batch` rows share: launches that use it share a stream.

    attention: partial results. owners [batch] int32: 0, 1, ...
    """

    attention: DecodeWorkspace
    owners: Tensor

    @staticmethod
    def of(config: ModelConfig, batch: int, device: torch.device) -> "DecodeScratch":
        return DecodeScratch(
            attention=DecodeWorkspace.of(config, batch, device),
            owners=torch.arange(batch, dtype=torch.int32, device=device),
        )
