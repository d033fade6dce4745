"""How loaded a node is, as a gateway weighs it. Pure functions of the engine's counters."""

from datetime import UTC, datetime

from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as pb

from ..engine.messages import StatsReply
from ..pycache._cpp_cache import PAGE_TOKENS
from .version import package_version

_WAITING = ("Waiting", "Retracted")


def loads_message(stats: StatsReply, max_running: int) -> pb.GetLoadsResponse:
    """max_running: requests in one forward."""
    load = scheduler_load(stats, max_running)
    return pb.GetLoadsResponse(
        timestamp=datetime.now(UTC).isoformat(),
        version=package_version(),
        dp_rank_count=1,
        loads=[load],
        aggregate=pb.AggregateMetrics(
            total_running_reqs=load.num_running_reqs,
            total_waiting_reqs=load.num_waiting_reqs,
            total_reqs=load.num_total_reqs,
            avg_token_usage=load.token_usage,
            avg_utilization=load.utilization,
        ),
    )


def scheduler_load(stats: StatsReply, max_running: int) -> pb.SchedulerLoad:
    """Usage counts KV pages: all that is held, and `active` what eviction cannot take."""
    total = sum(stats.requests.values())
    waiting = sum(stats.requests.get(state, 0) for state in _WAITING)
    pages = stats.pages
    capacity = max(1, pages["total"])
    held = pages["total"] - pages["free"]
    active = held - pages["tree"] + pages["pinned"]
    asked, usable = stats.tree["prompt_tokens"], stats.tree["usable_tokens"]
    return pb.SchedulerLoad(
        num_running_reqs=total - waiting,
        num_waiting_reqs=waiting,
        num_total_reqs=total,
        num_used_tokens=held * PAGE_TOKENS,
        max_total_num_tokens=capacity * PAGE_TOKENS,
        max_running_requests=max_running,
        token_usage=held / capacity,
        active_token_usage=active / capacity,
        cache_hit_rate=usable / asked if asked else 0.0,
        utilization=min(1.0, (total - waiting) / max_running),
        queues=pb.QueueMetrics(waiting=waiting, retracted=stats.requests.get("Retracted", 0)),
    )
