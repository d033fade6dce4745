"""Several towers behind the seam of rows: pictures computed beside each other, in this process."""

from dataclasses import dataclass, field

import numpy as np
import pytest
from torch import Tensor

from tasuki.engine import messages as m
from tasuki.engine.pictures.row_store import PictureName
from tasuki.engine.pictures.rows import Underway
from tasuki.model.vision.pixels import PicturePatches
from tasuki.model.vision.tower import Encode, VisionTower
from tests.harness.engines import Lone, prompt, submit
from tests.harness.tiny_pictures import (
    ROW_BYTES,
    TOWER,
    Prompt,
    assert_idle,
    encoder,
    seeing_engine,
)


@dataclass
class Towers:
    """Several towers in lockstep: each block of the picture begun is one of all others too.
    Implements Rows."""

    tower: VisionTower
    ahead: int
    pictures: dict[PictureName, Encode] = field(default_factory=dict)
    begun: PictureName | None = None
    rounds: int = 0

    def wanted(self, name: PictureName, patches: PicturePatches) -> None:
        if name not in self.pictures and len(self.pictures) < self.ahead + (self.begun is not None):
            self.pictures[name] = self.tower.begin(patches)

    def begin(self, name: PictureName, patches: PicturePatches) -> Underway:
        assert self.begun is None
        self.pictures.setdefault(name, self.tower.begin(patches))
        assert len(self.pictures) <= 1 + self.ahead
        self.begun = name
        return Begun(self, self.pictures[name])

    def unwanted(self, name: PictureName) -> None:
        self.pictures.pop(name, None)
        if self.begun == name:
            self.begun = None


@dataclass
class Begun:
    towers: Towers
    encode: Encode

    @property
    def blocks_left(self) -> int:
        return self.encode.blocks_left

    def run(self, blocks: int) -> None:
        for _ in range(min(blocks, self.blocks_left)):
            self.towers.rounds += 1
            for encode in self.towers.pictures.values():
                encode.run(1)

    def rows(self) -> Tensor:
        assert self.towers.begun is not None
        del self.towers.pictures[self.towers.begun]
        self.towers.begun = None
        return self.encode.rows()


def several(ahead: int, tokens: int = 400, **settings: object) -> tuple[Lone, Towers]:
    """Return an engine with several towers. tokens: of its row budget."""
    engine = seeing_engine(prefill_chunk_tokens=64, **settings)
    own = encoder(engine)
    own._rows = towers = Towers(own._tower, ahead)
    own.store._budget = tokens * ROW_BYTES
    return engine, towers


def text(length: int, seed: int = 0) -> list[int]:
    return [token % 120 for token in prompt(length, seed)]


def document(pages: int, seed: int = 0) -> Prompt:
    made = Prompt()
    for page in range(pages):
        made.text(text(9, seed + page)).picture(f"p{page}", 7, 9)
    return made.text(text(20))


def answer_to(made: Prompt) -> list[int]:
    return seeing_engine().ask("r", made.tokens, 8, pictures=tuple(made.pictures))


@pytest.mark.parametrize("ahead", [0, 1, 3, 7])
def test_a_prompts_pictures_share_rounds(ahead: int) -> None:
    made = document(8)
    engine, towers = several(ahead, tokens=8 * 63)
    assert engine.ask("r", made.tokens, 8, pictures=tuple(made.pictures)) == answer_to(made)
    assert encoder(engine).counts.encoded == 8
    # A picture wished for later may begin some blocks behind the others.
    assert 0 <= towers.rounds - -(-8 // (1 + ahead)) * TOWER.depth < TOWER.depth
    assert ahead or towers.rounds == 8 * TOWER.depth
    assert not towers.pictures
    assert_idle(engine)


def test_a_budget_of_one_picture_serves_towers_that_compute_ahead() -> None:
    made = document(5)
    engine, towers = several(3, tokens=63)
    assert engine.ask("r", made.tokens, 8, pictures=tuple(made.pictures)) == answer_to(made)
    assert not towers.pictures
    assert_idle(engine)


def test_an_abort_gives_up_the_pictures_ahead() -> None:
    engine, towers = several(3)
    now = iter(range(0, 10**9, 3600))
    encoder(engine)._clock = lambda: float(next(now))
    made, other = document(6), document(2, seed=9)
    engine.post(submit("gone", made.tokens, 8, pictures=tuple(made.pictures)))
    engine.post(submit("stays", other.tokens, 8, pictures=tuple(other.pictures)))
    engine.steps(3)
    assert len(towers.pictures) == 4
    engine.post(m.Abort(m.RequestId("gone")))
    # The other request waits for one of them, and for a second one later.
    assert len(towers.pictures) == 2
    engine.run()
    assert engine.tokens("stays") == answer_to(other)
    assert not towers.pictures
    assert_idle(engine)


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_after_random_lives_no_tower_has_a_picture(count: int) -> None:
    random = np.random.default_rng(11)
    engine, towers = several(2, tokens=130, max_batch=6)
    made: dict[str, Prompt] = {}
    for number in range(count):
        name = f"r{number}"
        made[name] = Prompt().text(text(int(random.integers(1, 60)), int(random.integers(4))))
        for _ in range(int(random.integers(0, 5))):
            made[name].picture(f"p{random.integers(6)}", int(random.integers(1, 8)), 9)
            made[name].text(text(int(random.integers(0, 30))))
        message = submit(
            *(name, made[name].tokens, 4), pictures=tuple(made[name].pictures), salt=b"s"
        )
        engine.post(message)
        engine.steps(int(random.integers(0, 5)))
        if random.random() < 0.4:
            engine.post(m.Abort(m.RequestId(f"r{random.integers(number + 1)}")))
    engine.run()
    assert len(engine.all_said(m.Finished)) == count and not engine.all_said(m.Rejected)
    engine.assert_at_rest()
    assert_idle(engine)
    assert not towers.pictures
    whole = [name for name in made if len(engine.tokens(name)) == 4]
    assert len(whole) > count / 2
    for name in whole[:: max(1, count // 20)]:
        oracle = seeing_engine().ask(
            *(name, made[name].tokens, 4), pictures=tuple(made[name].pictures)
        )
        assert engine.tokens(name) == oracle
