"""One optimiser step over a batch of fixed shape, replayed as a CUDA graph where there is a GPU.

Owns the optimiser and its graphs, one a batch shape; does not know data or schedule. A small model
is bound by kernel launches, which a graph removes. Single-threaded.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as functional
from torch import Tensor, nn

from tools.training.schedule import parameter_groups

_WARM_UP_STEPS = 3


class TrainingStep:
    """Forward, backward, clipping and AdamW on float32 weights, with bfloat16 matrix products."""

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        self._model = model
        self._device = next(model.parameters()).device
        self._graphed = self._device.type == "cuda"
        self._rate = torch.zeros((), device=self._device)
        self._optimiser = torch.optim.AdamW(
            parameter_groups(model, weight_decay),
            lr=self._rate if self._graphed else 0.0,
            betas=(0.9, 0.95),
            fused=self._graphed,
            capturable=self._graphed,
        )
        # Graphs never run at once and keep nothing between replays, so they share their memory.
        self._pool = torch.cuda.graph_pool_handle() if self._graphed else None
        self._replays: dict[torch.Size, Callable[[Tensor], Tensor]] = {}

    def __call__(self, tokens: Tensor, rate: float) -> Tensor:
        """Train on tokens [B, T] at that learning rate; the mean loss, a scalar on the device."""
        if not self._graphed:
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            return self._eager(tokens)
        self._rate.fill_(rate)
        if tokens.shape not in self._replays:
            self._replays[tokens.shape] = self._capture(tokens)
        return self._replays[tokens.shape](tokens)

    def _eager(self, tokens: Tensor) -> Tensor:
        self._optimiser.zero_grad(set_to_none=True)
        with mixed_precision(self._device):
            loss = next_token_loss(self._model, tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0, foreach=True)
        self._optimiser.step()
        return loss.detach()

    def _capture(self, tokens: Tensor) -> Callable[[Tensor], Tensor]:
        """Record one step. Warming up trains for real, so weights and moments are put back."""
        parameters = list(self._model.parameters())
        weights = [parameter.detach().clone() for parameter in parameters]
        moments = {
            (parameter, name): tensor.clone()
            for parameter, state in self._optimiser.state.items()
            for name, tensor in state.items()
        }
        static = tokens.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_STEPS):
                self._eager(static)
        torch.cuda.current_stream().wait_stream(side)
        self._optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            loss = self._eager(static)
        with torch.no_grad():
            for parameter, weight in zip(parameters, weights, strict=True):
                parameter.copy_(weight)
            for parameter, state in self._optimiser.state.items():
                for name, tensor in state.items():
                    before = moments.get((parameter, name))
                    tensor.zero_() if before is None else tensor.copy_(before)

        def replay(tokens: Tensor) -> Tensor:
            static.copy_(tokens)
            graph.replay()
            return loss.clone()

        return replay


def next_token_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy (nats a token) of tokens [B, T] after the first."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def mixed_precision(device: torch.device) -> torch.autocast:
    """bfloat16 matrix products on a GPU, float32 elsewhere."""
    # A cached cast would outlive the graph that made it.
    return torch.autocast(
        device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False
    )
