"""The token drawn last of every sequence, on the GPU: how one step hands the next its input.

Owns one number a lane. One lane more than there are slots is for rows that count for nothing.
"""

import torch
from torch import Tensor

from tasuki.engine.forward_plan import Ints


class LastTokens:
    def __init__(self, slots: int, device: torch.device) -> None:
        self.scratch = slots
        self._tokens = torch.zeros(slots + 1, dtype=torch.int32, device=device)

    @property
    def all(self) -> Tensor:
        """[lanes] int32, where they stand."""
        return self._tokens

    def tokens(self, lanes: Tensor) -> Tensor:
        """[n] int32 of lanes [n] int32."""
        return self._tokens.index_select(0, lanes)

    def put(self, lanes: Tensor, tokens: Tensor) -> None:
        """lanes, tokens [n] int32 on the device."""
        self._tokens.index_copy_(0, lanes.long(), tokens)

    def put_known(self, lanes: Ints, tokens: Ints) -> None:
        """lanes, tokens [n], of the host's."""
        host = torch.empty(2, len(lanes), dtype=torch.int64, pin_memory=True)
        host.numpy()[:] = lanes, tokens
        known_lanes, known = host.to(self._tokens.device, non_blocking=True)
        self._tokens.index_copy_(0, known_lanes, known.int())
