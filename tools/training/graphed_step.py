"""One training step of a small model: forward, backward, clipping and AdamW on float32 weights.

With a GPU, a CUDA graph replays the step, because kernel launches limit a small model.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .schedule import parameter_groups

_WARM_UP_STEPS = 3

Inputs = tuple[Tensor, ...]


class TrainingStep:
    """The step of one model. Owns the optimiser and its graphs, one for each batch shape.
    Single-threaded."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Inputs], Tensor],
        weight_decay: float,
        *,
        graphed: bool,
        betas: tuple[float, float] = (0.9, 0.95),
    ) -> None:
        """loss: mean loss of a batch, a scalar on the device. With `graphed` it must not wait on
        the host. graphed: replay the step as a CUDA graph."""
        self._model, self._loss, self._graphed = model, loss, graphed
        self._rate = torch.zeros((), device=next(model.parameters()).device)
        self._optimiser = torch.optim.AdamW(
            parameter_groups(model, weight_decay),
            lr=self._rate if graphed else 0.0,
            betas=betas,
            fused=graphed,
            capturable=graphed,
        )
        # Graphs never run at once and keep nothing between replays, so they share their memory.
        self._pool = torch.cuda.graph_pool_handle() if graphed else None
        self._replays: dict[tuple[torch.Size, ...], Callable[[Inputs], Tensor]] = {}

    def __call__(self, inputs: Inputs, rate: float) -> Tensor:
        """Train on a batch at learning rate `rate`. Return the mean loss, a scalar on the
        device."""
        if not self._graphed:
            for group in self._optimiser.param_groups:
                group["lr"] = rate
            return self._eager(inputs)
        self._rate.fill_(rate)
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._replays:
            self._replays[shapes] = self._capture(inputs)
        return self._replays[shapes](inputs)

    def _eager(self, inputs: Inputs) -> Tensor:
        self._optimiser.zero_grad(set_to_none=True)
        loss = self._loss(inputs)
        loss.backward()
        nn.utils.clip_grad_norm_(self._model.parameters(), 1.0, foreach=True)
        self._optimiser.step()
        return loss.detach()

    def _capture(self, inputs: Inputs) -> Callable[[Inputs], Tensor]:
        """Capture one step as a CUDA graph. Its warm-up trains for real, so weights and moments are
        restored afterwards."""
        parameters = list(self._model.parameters())
        weights = [parameter.detach().clone() for parameter in parameters]
        moments = {
            (parameter, name): tensor.clone()
            for parameter, state in self._optimiser.state.items()
            for name, tensor in state.items()
        }
        static = tuple(tensor.clone() for tensor in inputs)
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

        def replay(inputs: Inputs) -> Tensor:
            for kept, given in zip(static, inputs, strict=True):
                kept.copy_(given)
            graph.replay()
            return loss.clone()

        return replay
