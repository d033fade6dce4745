"""The work of pictures in routes: rows to be computed count as tokens of the same FLOPs."""

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages import Choice
from tasuki.engine.routing import PrefillLoad, PrefillSpeed
from tasuki.model.families.qwen3_5.costs import prefill_flops
from tasuki.model.vision.costs import EncodeFlops
from tasuki.pycache.keys import Keys
from tests.harness.engines import Lone, submit
from tests.harness.tiny_pictures import TOWER, Prompt, encoder, seeing_engine, seeing_parts

ROWS, COLUMNS = 9, 11


def work() -> float:
    """Return the tower's FLOPs for the prompts' picture, as tokens of the language model."""
    patches = ROWS * COLUMNS * TOWER.merge**2
    token = prefill_flops(seeing_parts().model_config).linear
    return EncodeFlops.of(TOWER).picture(patches) / token


def prompt() -> Prompt:
    return Prompt().text(range(1, 31)).picture("a", ROWS, COLUMNS).text(range(1, 9))


def placed(engine: Lone, name: str) -> list[float]:
    """Submit the prompt; return its request's work before it begins."""
    made = prompt()
    engine.post(submit(name, made.tokens, 4, pictures=tuple(made.pictures)))
    (request,) = engine.engine._handover.requests
    pictures = engine.engine._scheduler.pictures
    assert pictures is not None
    ends = [0, made.pictures[0].start, made.pictures[0].run.end]
    return [pictures.work(request, at) for at in ends]


def test_a_picture_costs_its_flops_until_its_rows_are_kept() -> None:
    engine = seeing_engine()
    whole, inside, behind = placed(engine, "first")
    assert whole == inside == pytest.approx(work()) and behind == 0.0
    assert work() > 1.0
    engine.run()
    assert len(encoder(engine).store) == 1
    assert placed(engine, "second") == [0.0, 0.0, 0.0]
    engine.run()


def test_a_prompt_with_a_picture_goes_where_as_many_tokens_would() -> None:
    engine = seeing_engine(route="fixed", local_prefill_tokens=100, pull_tokens=32)
    router = engine.engine._handover._router
    match = engine.engine._cache.match(Keys(np.arange(60, dtype=np.int32)), b"")
    assert router.prefill_place(match).choice is Choice.HERE
    assert router.prefill_place(match, encodes=40.0).choice is Choice.HERE
    assert router.prefill_place(match, encodes=41.0).choice is Choice.THERE


def test_a_pull_that_saves_a_picture_pays() -> None:
    engine = seeing_engine(route="fixed", pull_tokens=32)
    router = engine.engine._handover._router
    match = engine.engine._cache.match(Keys(np.arange(60, dtype=np.int32)), b"")
    assert router.pull(match, 20, 0.0).choice is Choice.THERE
    assert router.pull(match, 20, 0.0, encodes=12.0).choice is Choice.PULLED
    assert router.pull(match, 0, 0.0, encodes=500.0).choice is Choice.THERE


def test_a_transfer_with_pictures_is_more_work_ahead() -> None:
    speed = PrefillSpeed(0.0, 64)
    load = PrefillLoad(speed)
    load.enter(m.TransferId(1), 0, 100)
    text = load.wait
    load.enter(m.TransferId(2), 0, 100, encodes=300.0)
    assert load.wait - text == pytest.approx(text + 300.0 * speed.seconds.token)
