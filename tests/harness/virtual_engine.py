"""An engine on a device that computes nothing, in a time of its own: what a step takes is a
function of its rows and its prompt tokens, and the clock of its queue moves by that."""

from dataclasses import dataclass, field, replace

from tasuki.bench.load.free.model import FreeModel, free_shape
from tasuki.bench.load.free.runner import FreeForward, FreeRunner
from tasuki.bench.load.free.step_cost import StepCost
from tasuki.bench.load.free.tokens import VOCABULARY
from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import EngineParts
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.forward_plan import ForwardPlan
from tasuki.model.config import ModelConfig
from tasuki.pycache.arena import Arena
from tasuki.transfer.windows.window import StepCounter
from tests.harness.engines import Lone
from tests.harness.manual_clock import ManualClock


@dataclass(frozen=True)
class SpentOnClock(StepCost):
    """No forward takes any real time."""

    clock: ManualClock = field(default_factory=ManualClock)
    taken: list[float] = field(default_factory=list)

    def of(self, rows: int, prompt_tokens: int) -> float:
        self.taken.append(super().of(rows, prompt_tokens))
        self.clock.now += self.taken[-1]
        return 0.0


class VirtualRunner(FreeRunner):
    def __init__(self, lanes: int, cost: SpentOnClock) -> None:
        super().__init__(lanes, VOCABULARY, cost, None)
        self._taken = cost.taken

    def launch(self, plan: ForwardPlan) -> FreeForward:
        self._taken.clear()
        return replace(super().launch(plan), busy_seconds=sum(self._taken))


class VirtualEngine(Lone):
    """first_tokens: when each came; refused: what was refused before another step; later: what was
    rejected behind one."""

    def __init__(self, cost: SpentOnClock, slabs: int = 600, **settings: object) -> None:
        self.clock = cost.clock
        self.taken = cost.taken
        model = ModelConfig.from_dict(free_shape(4))
        layout = model.cache_layout("float32", "float32", "float32")
        parts = EngineParts(
            model,
            FreeModel(model, StepCost()),
            Arena(layout, slabs),
            StepCounter(),
            runner=lambda parts, _: VirtualRunner(parts.arena.slabs, cost),
            clock=cost.clock,
        )
        config = EngineConfig(model="free", dtype="float32", **settings)  # type: ignore[arg-type]
        super().__init__(config, Role.FUSED, parts)
        self.first_tokens: dict[str, float] = {}
        self.last_tokens: dict[str, float] = {}
        self.begun: set[str] = set()

    def step(self) -> bool:
        before = len(self.said)
        worked = super().step()
        for said in self.said[before:]:
            if isinstance(said, m.TokenOut):
                self.first_tokens.setdefault(said.request_id, self.clock.now)
                self.last_tokens[said.request_id] = self.clock.now
        self.begun |= {request.told_as for request in self.engine._scheduler.running}
        return worked

    def wait(self, seconds: float) -> None:
        """Step, and let time pass while there is nothing to do."""
        until = self.clock.now + seconds
        while self.clock.now < until:
            if not self.step():
                self.clock.now = until
