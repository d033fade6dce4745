"""What runs plans: the protocol of a runner, of a forward in flight and of an event.

A runner sees plans (engine/forward_plan.py) and memory; no request, no tree. Launching and reading
the result are apart, so that the next forward is planned while this one runs.
"""

from collections.abc import Callable
from typing import Protocol

from tasuki.engine.forward_plan import ForwardPlan

from .drawn_tokens import DrawnTokens


class DeviceLost(Exception):
    """The device computes nothing for this process any more, whatever it is given: restart it."""


class InFlightForward(Protocol):
    """A forward that was launched."""

    @property
    def has_ended(self) -> bool:
        """Whether the device has computed all of it."""

    @property
    def idle_seconds(self) -> float:
        """From the end of the forward before to the start of this one, on the device, copies and
        folds between them included. REQUIRES: result() was called."""

    @property
    def busy_seconds(self) -> float:
        """From the start of this one to its end, on the device. REQUIRES: result() was called."""

    def result(self) -> DrawnTokens:
        """Wait for the end. What was drawn, by the plan's rows.

        Raises what the forward raised. Call it once.
        """


Event = Callable[[], bool]
"""Whether all that was launched before it was recorded has ended."""


class EventRecorder(Protocol):
    def record_event(self) -> Event:
        """An event behind everything that was launched, or was to be copied, until now."""


class Runner(EventRecorder, Protocol):
    """Plans are run in the order of their numbers, each after the one before has ended."""

    @property
    def ticks(self) -> int:
        """The step counter's value once all that was launched has ended."""

    def prepare(self) -> None:
        """Once, on the thread that will launch, before it does: what else the first request would
        wait for."""

    def check_device(self) -> None:
        """After a forward has failed: raises DeviceLost where no other one can succeed here."""

    def launch(self, plan: ForwardPlan) -> InFlightForward:
        """Start a forward, its copies first. Raises PlanError where the plan is not the next one or
        does not fit what is kept here, and what else is wrong with it already; then nothing is in
        flight of it."""
