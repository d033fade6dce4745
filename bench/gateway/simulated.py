"""What the simulator says of the same nodes and turns, under routes to compare a gateway with."""

from typing import Any, get_args

from tasuki.bench.fleet.nodes.node_model import NodeModel
from tasuki.bench.fleet.settings import FleetSettings, RouteName
from tasuki.bench.fleet.simulate import simulate
from tasuki.bench.replay.trace import Trace

from .settings import GatewaySettings

_ROUTES: tuple[RouteName, ...] = ("one-cache", "cost", "sticky", "random")
assert set(_ROUTES) <= set(get_args(RouteName))
_KEPT = ("turns", "flops_saved", "hit_rate", "ttft_mean_seconds", "ttft_p95_seconds")


def simulated(trace: Trace, settings: GatewaySettings, model: NodeModel) -> dict[str, Any]:
    """By route. trace, model: shortened."""
    return {route: _one(trace, settings, model, route) for route in _ROUTES}


def _one(
    trace: Trace, settings: GatewaySettings, model: NodeModel, route: RouteName
) -> dict[str, Any]:
    asked = FleetSettings(
        model=settings.model,
        nodes=settings.nodes,
        gb=settings.gb,
        route=route,
        policy="value",
        streams=settings.streams,
        arrivals="recorded",
        seed=settings.seed,
        deciders=1,
        seconds=settings.restart or settings.seconds,
        warm_up=settings.warm_up,
        tflops=settings.tflops,
        fixed_ms=settings.fixed_ms,
        itl_ms=1e3 * settings.token_seconds,
        report_seconds=1.0,
        report_delay=0.0,
        index_seconds=0.05,
        lost=0.0,
        dead=0.0,
        link_gb=25.0,
    )
    found = simulate(trace, asked, model)
    return {name: found[name] for name in _KEPT}
