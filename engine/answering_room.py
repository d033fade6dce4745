"""How much room an engine has for one answer more, as one who places sessions asks.

Owns how long forwards with answers took. Thread rule: the engine loop's.
"""

from tasuki.pycache.prefix_cache import HybridPrefixCache

from . import messages as m
from .handover.base import Handover
from .intake import Intake
from .routing.cost_learner import LineFit
from .scheduling.scheduled_forward import ScheduledForward
from .scheduling.scheduler import Scheduler


class AnsweringRoom:
    def __init__(
        self,
        cache: HybridPrefixCache,
        scheduler: Scheduler,
        intake: Intake,
        handover: Handover,
    ) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._intake = intake
        self._handover = handover
        self._forwards = LineFit()

    def landed(self, forward: ScheduledForward, seconds: float) -> None:
        """It took so long alone, with the chunks of prompts that answers waited for."""
        if len(forward.answers):
            self._forwards.add(len(forward.answers), seconds)

    def reply(self, query: m.LoadQuery) -> m.LoadReply:
        pages = self._cache.stats().pages
        held = pages.working + pages.granted + pages.quarantined + pages.pinned
        line = self._forwards.line()
        return m.LoadReply(
            query.query_id,
            step_seconds=None if line is None else line.seconds(self._answers + 1),
            in_flight=len(self._handover.requests),
            places=self._scheduler.max_batch,
            free_kv=1.0 - held / pages.total,
            draining=self._intake.draining,
        )

    @property
    def _answers(self) -> int:
        running = self._scheduler.running
        return len(running) - len(running.prompts)
