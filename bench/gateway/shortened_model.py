"""A model of whose tokens each stands for several: what a shortened trace's nodes serve.

A page holds as many bytes as those that it stands for, a state as many as ever, and a prefill takes
as long; so a cache holds as much of a shortened conversation as a real one of the whole.
"""

from dataclasses import replace

from tasuki.bench.fleet.nodes.node_model import NodeModel
from tasuki.model.costs import PrefillFlops
from tasuki.routing.node_load import PrefillSeconds


def shortened_model(model: NodeModel, factor: int) -> NodeModel:
    """factor: tokens that one stands for."""
    flops, seconds = model.flops, model.seconds
    return NodeModel(
        replace(model.layout, head_dim=factor * model.layout.head_dim),
        PrefillFlops(factor * flops.linear, factor**2 * flops.quadratic),
        PrefillSeconds(seconds.fixed, factor * seconds.token, factor**2 * seconds.context),
        model.source,
    )
