"""Parts of encodes on a device that computes later: their sizes, their ends, what a step waits
for."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.pictures.tower_pace import DevicePace, HostPace, pace_of
from tests.harness.engines import Lone, submit
from tests.harness.tiny_pictures import Prompt, assert_idle, encoder, seeing_engine


@dataclass
class LatePart:
    """A part that ends when told to."""

    seconds: float = 0.004
    has_ended: bool = False
    waits: int = 0

    def wait(self) -> None:
        self.waits += 1
        self.has_ended = True


@dataclass
class LatePace:
    """A pace with two blocks a part, each part ending later."""

    parts: list[LatePart] = field(default_factory=list)
    asked: list[float] = field(default_factory=list)
    learnt: list[float] = field(default_factory=list)
    count: int = 2

    def blocks(self, flops: float, seconds: float) -> int:
        self.asked.append(seconds)
        return self.count

    def begin(self) -> None:
        """Do nothing: the host computes at once, and the part ends when told to."""

    def end(self) -> LatePart:
        self.parts.append(LatePart())
        return self.parts[-1]

    def measured(self, flops: float, seconds: float) -> None:
        self.learnt.append(flops / seconds)


@pytest.fixture
def engine() -> Iterator[Lone]:
    found = seeing_engine()
    yield found
    encoder(found).close()


def paced(engine: Lone) -> LatePace:
    pace = LatePace()
    encoder(engine)._pace = pace
    return pace


def picture(name: str = "a") -> Prompt:
    return Prompt().text(range(1, 30)).picture(name, 4, 5).text(range(1, 9))


def post(engine: Lone, made: Prompt, name: str) -> None:
    engine.post(submit(name, made.tokens, 4, pictures=tuple(made.pictures)))


def test_answers_go_on_beside_a_part_in_flight(engine: Lone) -> None:
    """No step launches a second part, or waits for the first."""
    pace = paced(engine)
    engine.post(submit("words", list(range(1, 20)), 60))
    engine.steps(3)
    post(engine, picture(), "r")
    for _ in range(6):
        before = len(engine.tokens("words"))
        engine.step()
        assert len(engine.tokens("words")) == before + 1
    assert len(pace.parts) == 1 and not pace.parts[0].waits and not pace.learnt
    assert max(pace.asked) <= 0.01
    pace.parts[0].has_ended = True
    engine.steps(3)
    assert len(pace.parts) == 2 and encoder(engine).counts.encoded == 0
    assert len(pace.learnt) == 1
    # The second part has the last of three blocks, and the rows.
    assert encoder(engine).store.nbytes and not len(encoder(engine).store)
    pace.parts[1].has_ended = True
    engine.run()
    assert encoder(engine).counts.encoded == 1
    ends = pace.learnt
    assert ends[0] == pytest.approx(2 * ends[1]), "of two blocks, and of one, in equal time"
    expected = seeing_engine()
    made = picture()
    assert engine.tokens("r") == expected.ask("r", made.tokens, 4, pictures=tuple(made.pictures))
    assert_idle(engine)


def test_an_engine_with_nothing_else_waits_for_a_part(engine: Lone) -> None:
    pace = paced(engine)
    made = picture()
    engine.ask("r", made.tokens, 4, pictures=tuple(made.pictures))
    assert [part.waits for part in pace.parts] == [1, 1]
    assert max(pace.asked) > 0.05, "a longer while than beside answers"
    assert_idle(engine)


def test_a_request_that_ends_gives_up_its_part_in_flight(engine: Lone) -> None:
    pace = paced(engine)
    engine.post(submit("words", list(range(1, 20)), 200))
    engine.steps(3)
    post(engine, picture(), "r")
    engine.steps(3)
    assert len(pace.parts) == 1
    engine.post(m.Abort(m.RequestId("r")))
    engine.steps(2)
    assert_idle(engine)
    # The next picture begins anew; the old part's end means nothing to it.
    post(engine, picture("b"), "s")
    engine.steps(2)
    assert len(pace.parts) == 2
    for _ in range(40):
        for part in pace.parts:
            part.has_ended = True
        engine.step()
    assert engine.tokens("s") and encoder(engine).counts.encoded == 1
    engine.run()
    assert_idle(engine)


def test_rows_of_nan_are_found_when_their_part_has_ended(engine: Lone) -> None:
    pace = paced(engine)
    own = encoder(engine)
    own._tower.weights.merger_fc2.bias.fill_(torch.nan)
    engine.post(submit("words", list(range(1, 20)), 60))
    engine.steps(3)
    post(engine, picture(), "r")
    for _ in range(12):
        engine.step()
        for part in pace.parts:
            part.has_ended = True
    error = engine.rejected("r")
    assert error.kind is m.ErrorKind.INTERNAL and "NaN" in error.message
    engine.run()
    assert_idle(engine)


def test_a_device_runs_as_many_blocks_as_fit() -> None:
    pace = DevicePace(torch.device("cpu"))
    assert pace.blocks(1e9, 10.0) == 1, "nothing is known yet"
    pace.measured(4e9, 0.004)
    assert pace.blocks(1e9, 0.0105) == 10
    assert pace.blocks(1e9, -5.0) == 1
    pace.measured(4e9, 0.008)
    assert pace.blocks(1e9, 0.0105) == 7
    pace.measured(4e9, 0.0)
    assert pace.blocks(1e9, 0.0105) == 7


def test_a_host_runs_one_block_at_a_time() -> None:
    now = iter(range(10))
    pace = pace_of(torch.device("cpu"), lambda: float(next(now)))
    assert isinstance(pace, HostPace) and pace.blocks(1.0, 100.0) == 1
    pace.begin()
    part = pace.end()
    assert part.has_ended and part.seconds == 1.0
