"""Tests of the planner's reading of node metrics. Rates cover one life of a node. Only warm nodes
count for speed. A silent node is not taken for an idle one."""

import pytest

from tasuki.cli.planner.cluster import ClusterNode, NodePhase
from tasuki.cli.planner.config import PlannerConfig
from tasuki.cli.planner.plan_loop import PLANNED_BY, FleetObserver, NodesUnseen, figures
from tasuki.dashboard.fleet.samples import Samples, read_samples
from tasuki.routing.planner.observation import NodeRole, Observation
from tasuki.utils.flags import FlagError, read_configs

P, D = NodeRole.PREFILL, NodeRole.DECODE


def answer(
    busy: float, steps: int = 0, transfers: int = 0, tokens: int = 0, more: str = ""
) -> Samples:
    return read_samples(
        f"""tasuki_node_start_time_seconds 100
tasuki_engine_step_seconds_sum {busy}
tasuki_engine_step_seconds_count {steps}
tasuki_room_prefill_seconds_count {transfers}
tasuki_room_prefill_seconds_bucket{{le="0.1"}} {transfers}
tasuki_room_prefill_seconds_bucket{{le="+Inf"}} {transfers}
tasuki_generated_tokens_total {tokens}
{more}""",
        PLANNED_BY,
    )


MEMORY = """tasuki_cache_pages{owner="working"} 30
tasuki_cache_pages{owner="evictable"} 60
tasuki_cache_pages{owner="pinned"} 10
tasuki_cache_pages{owner="free"} 100
tasuki_requests{state="Decoding"} 8
tasuki_requests{state="Waiting"} 3
tasuki_requests{state="Finished"} 99
tasuki_prefill_node_wait_seconds{peer="p1"} %s
"""


def node(name: str, role: NodeRole, phase: NodePhase = NodePhase.READY) -> ClusterNode:
    return ClusterNode(name, role, phase, f"{name}:1", f"{name}:2")


NODES = [node("p1", P), node("d1", D), node("p2", P, NodePhase.COMING)]


class Watched:
    """An observer of nodes that answer every ten seconds."""

    def __init__(self, warm: float = 5.0) -> None:
        self.observer = FleetObserver(warm)
        self.now = 0.0

    def look(self, nodes: list[ClusterNode], **answers: Samples) -> Observation:
        self.now += 10
        for name, samples in answers.items():
            self.observer.answered(f"{name}:2", 0.0, self.now, samples)
        return self.observer.observe(nodes, self.now)


def test_work_is_what_was_done_and_what_is_left_more_than_before() -> None:
    watched = Watched()
    with pytest.raises(NodesUnseen, match="prefill"):
        watched.look(NODES, p1=answer(1, 10), d1=answer(1, 10, more=MEMORY % 2))
    watched.look(NODES, p1=answer(5, 20, 4), d1=answer(3, 30, 0, 160, MEMORY % 2))
    made = watched.look(NODES, p1=answer(13, 40, 8), d1=answer(5, 50, 0, 320, MEMORY % 22))
    # Eight of ten seconds were busy, and 20 more seconds of work wait.
    assert made.prefill.work == pytest.approx(0.8 + 2.0)
    assert made.prefill.backlog == 22 and made.prefill.mean == pytest.approx(2.0)
    assert made.decode.tokens == pytest.approx(16) and made.decode.batch == pytest.approx(8)
    assert made.decode.step == pytest.approx(0.1)
    assert (made.decode.running, made.decode.waiting) == (8, 3)
    assert made.decode.held == pytest.approx(0.2 / 8)
    assert (made.nodes[P].ready, made.nodes[P].coming, made.nodes[D].all) == (1, 1, 1)


def test_a_cold_node_s_work_counts_and_its_speed_does_not() -> None:
    watched = Watched(warm=15.0)
    with pytest.raises(NodesUnseen):
        watched.look(NODES, p1=answer(0), d1=answer(0, more=MEMORY % 0))
    cold = watched.look(NODES, p1=answer(9, 3, 3), d1=answer(1, 10, 0, 80, MEMORY % 0))
    assert cold.prefill.work == pytest.approx(0.9) and cold.decode.tokens == pytest.approx(8)
    assert cold.prefill.mean == 0 and cold.decode.step == 0
    warm = watched.look(NODES, p1=answer(12, 6, 6), d1=answer(2, 20, 0, 160, MEMORY % 0))
    assert warm.prefill.mean == pytest.approx(1.0) and warm.decode.step == pytest.approx(0.1)


def test_a_silent_node_is_made_up_for_and_one_that_began_anew_has_no_rate() -> None:
    nodes = [*NODES[:2], node("p3", P)]
    watched = Watched()
    first = {"p1": answer(0), "p3": answer(0), "d1": answer(0, more=MEMORY % 0)}
    with pytest.raises(NodesUnseen):
        watched.look(nodes, **first)
    watched.observer.failed("p3:2", 0.0, "no answer")
    made = watched.look(nodes, p1=answer(4, 1, 1), d1=answer(0, more=MEMORY % 0))
    assert made.prefill.work == pytest.approx(0.8), "two nodes, of which one answers"
    anew = read_samples("tasuki_node_start_time_seconds 200\n", PLANNED_BY)
    assert figures(answer(5), anew, 1.0) is None


def test_the_settings_of_a_planner_are_refused_by_name() -> None:
    (config,) = read_configs(["--ttft-target-ms", "500"], PlannerConfig)
    assert config.policy.targets.first_token == 0.5
    for wrong in (["--most-nodes", "1"], ["--target-share", "2"], ["--plan-window", "1"]):
        with pytest.raises(FlagError, match="must be"):
            read_configs(wrong, PlannerConfig)
