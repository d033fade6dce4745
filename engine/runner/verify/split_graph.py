"""A step as two CUDA graphs, the first of a few layers: the device works on those while the host
launches the rest, which takes half a millisecond of a thousand kernels.

It matters where the device waits for the host, as for rows with drafts: a step that was planned
ahead is launched long before it begins.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from tasuki.engine.runner.cuda_graphs import no_collection
from tasuki.model.hooks import LayerHooks

_FIRST_SHARE = 6
"""One in so many layers takes the device as long as launching the others takes the host."""


class SplitGraph:
    def __init__(
        self,
        step: Callable[[LayerHooks], object],
        layers: int,
        capture: Callable[[torch.cuda.CUDAGraph], AbstractContextManager[None]],
    ) -> None:
        """Capture the step, of so many layers. capture: torch.cuda.graph with its pool. REQUIRES:
        the step has run before, so that kernels are compiled and libraries have their workspaces.
        """
        self._first, self._rest = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with no_collection(), ExitStack() as captured:

            def go_on_in(graph: torch.cuda.CUDAGraph) -> None:
                captured.close()
                captured.enter_context(capture(graph))

            go_on_in(self._first)
            step(_Cut(layers // _FIRST_SHARE, lambda: go_on_in(self._rest)))

    def replay(self) -> None:
        self._first.replay()
        self._rest.replay()


class _Cut(LayerHooks):
    def __init__(self, layer: int, cut: Callable[[], None]) -> None:
        """cut: called once that layer is captured."""
        self._layer = layer
        self._cut = cut

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        if layer == self._layer:
            self._cut()
