"""How many prefill nodes a load needs, so that wait and prefill keep within a target. Pure."""

import math

from .policy import ServiceTargets
from .waiting import ServiceTimes, late_share

BUSY_AT_MOST = 0.8
"""Where no number of nodes meets the target: more would be held for nothing."""
_OWN_SHARE = 0.9
"""Of the prompts that may be late, those that are so by themselves."""


def prefill_feasible(service: ServiceTimes, targets: ServiceTargets) -> bool:
    """Whether prompts that nobody is before meet the target, with something left for waits."""
    return service.over(targets.first_token) <= _OWN_SHARE * (1 - targets.share)


def prefill_nodes(
    work: float, service: ServiceTimes | None, targets: ServiceTargets, most: int
) -> int:
    """The least that meets the targets, at most `most`; where they cannot be met, the least that
    are busy for BUSY_AT_MOST of their time. work: nodes' worth. service: None where it is not
    known."""
    if work <= 0:
        return 0
    if work >= most:
        return most
    if service is None or not prefill_feasible(service, targets):
        return min(most, math.ceil(work / BUSY_AT_MOST))
    nodes = math.floor(work) + 1
    while (
        nodes < most and late_share(nodes, work, service, targets.first_token) > 1 - targets.share
    ):
        nodes += 1
    return nodes
