"""Where others watch or hold a forward between its layers: the step counter, the layer barrier.

Knows no layer and no memory. Hooks run on the thread of the forward and must not start another one.
"""

from typing import Protocol

from torch import Tensor


class LayerHooks(Protocol):
    """Called on the thread of the forward for every layer of any kind, in order."""

    def before_layer(self, layer: int) -> None:
        """The layer has read nothing of the arena yet; may block until its bytes are there."""
        return

    def mixer_inputs(self, layer: int, projected: Tensor) -> None:
        """What the layer's mixer is about to read: projected [T, widths], of a draft layer the
        model's final hidden states; valid during the call only."""
        return

    def cache_written(self, layer: int) -> None:
        """What the layer wrote of pages and slots is final (on a GPU: enqueued). Its output
        projection and feed-forward are still to come, and are a good part of it."""
        return

    def after_layer(self, layer: int, branch: Tensor, residual: Tensor) -> None:
        """The layer is computed (on a GPU: enqueued).

        branch + residual, both [T, hidden_size], is the residual stream; valid during the call
        only. They come apart because the next norm is what adds them.
        """
        return


class NullHooks(LayerHooks):
    """Watches nothing."""
