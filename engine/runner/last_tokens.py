"""The token drawn last of every running request, on the GPU: how one step hands the next its input.

Owns one number a lane; a request's lane is its first working slot. One lane more than slots is for
rows that count for nothing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


class Lanes:
    def __init__(self, slots: int, device: torch.device) -> None:
        self.scratch = slots
        self._tokens = torch.zeros(slots + 1, dtype=torch.int32, device=device)

    def tokens(self, lanes: Tensor) -> Tensor:
        """[n] int32 of lanes [n] int32."""
        return self._tokens.index_select(0, lanes)

    def put(self, lanes: Tensor, tokens: Tensor) -> None:
        """lanes, tokens [n] int32 on the device."""
        self._tokens.index_copy_(0, lanes.long(), tokens)

    def tell(self, known: Mapping[int, int]) -> None:
        """Put tokens that the host knows, by lane."""
        host = torch.tensor([list(known), list(known.values())], pin_memory=True)
        lanes, tokens = host.to(self._tokens.device, non_blocking=True)
        self._tokens.index_copy_(0, lanes, tokens.int())
