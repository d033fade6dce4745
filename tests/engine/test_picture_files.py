"""Tests of pictures that come to an engine as files: decoded only if their rows are missing."""

import base64
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tasuki.engine import messages as m
from tasuki.engine.pictures.file_levels import FileLevels
from tests.harness.engines import Lone, submit
from tests.harness.picture_files import picture_file
from tests.harness.tiny_pictures import RULES, Prompt, assert_idle, encoder, seeing_engine
from tests.harness.waiting import HANG_SECONDS

ROWS, COLUMNS = 3, 4
SIZE = (COLUMNS * RULES.factor, ROWS * RULES.factor)


@pytest.fixture
def engine() -> Iterator[Lone]:
    found = seeing_engine(prefill_chunk_tokens=64)
    yield found
    encoder(found).close()


def prompt(content: bytes, name: str = "a", behind: int = 80, **changes: object) -> Prompt:
    """Return a prompt with the picture of a file. changes: of its m.PictureFile."""
    made = Prompt().text(range(1, 71)).picture(name, ROWS, COLUMNS).text(range(1, 1 + behind))
    width, height = SIZE
    file = m.PictureFile(content, m.FileCoding.PLAIN, height, width, "messages[0].content[1]")
    file = replace(file, **changes)
    made.pictures = [replace(one, levels=None, file=file) for one in made.pictures]
    return made


def ask(engine: Lone, made: Prompt, name: str) -> list[int]:
    """Run a request to its end, waiting for its decodes."""
    engine.ask(name, made.tokens, 4, pictures=tuple(made.pictures))
    settle(engine)
    return engine.tokens(name)


def settle(engine: Lone) -> None:
    until = time.monotonic() + HANG_SECONDS
    while encoder(engine).is_decoding:
        assert time.monotonic() < until
        time.sleep(engine.engine.idle_seconds or 0.0)
        engine.run()


def error_of(engine: Lone, name: str) -> m.RequestError:
    (rejected,) = [said for said in engine.all_said(m.Rejected) if said.request_id == name]
    return rejected.error


def with_levels(content: bytes) -> Prompt:
    """Return the prompt of a file with its patches in place of it."""
    made = prompt(content)
    files = FileLevels(RULES)
    try:
        placed = seeing_engine().engine._intake.placed(submit_of(made))
        assert not isinstance(placed, m.RequestError) and placed is not None
        reading = files.begin("", placed.pictures[0])
        assert reading is not None
        levels = reading.result(HANG_SECONDS).levels
    finally:
        files.close()
    made.pictures = [replace(one, levels=levels.numpy(), file=None) for one in made.pictures]
    return made


def submit_of(made: Prompt) -> m.Submit:
    return submit("r", made.tokens, 4, pictures=tuple(made.pictures))


def test_a_file_answers_as_its_patches(engine: Lone) -> None:
    content = picture_file(*SIZE)
    assert ask(engine, prompt(content), "file") == ask(
        seeing_engine(), with_levels(content), "levels"
    )
    text = base64.encodebytes(content)
    encoder(engine).store.clear()
    coded = prompt(text, "b", coding=m.FileCoding.BASE64)
    assert ask(engine, coded, "base64") == engine.tokens("file")
    assert encoder(engine).counts.decoded == 2
    assert_idle(engine)


def test_a_hit_decodes_nothing(engine: Lone) -> None:
    content = picture_file(*SIZE)
    first = ask(engine, prompt(content), "first")
    encoder(engine).store.clear()
    # No decoder would take these bytes.
    assert ask(engine, prompt(b"not read"), "again") == first
    assert engine.hit("again").usable_tokens >= 128
    assert encoder(engine).counts.decoded == encoder(engine).counts.encoded == 1
    assert_idle(engine)


def test_kept_rows_decode_nothing(engine: Lone) -> None:
    ask(engine, prompt(picture_file(*SIZE)), "first")
    other = prompt(b"not read")
    other.tokens[0] += 1
    assert len(ask(engine, other, "other")) == 4
    assert engine.hit("other").usable_tokens == 0
    assert encoder(engine).counts.decoded == 1 and encoder(engine).counts.kept >= 1


BROKEN = {
    "no picture": prompt(b"words"),
    "cut off": prompt(picture_file(*SIZE)[:-40]),
    "another size": prompt(picture_file(50, 30)),
    "no base64": prompt(b"%%%", coding=m.FileCoding.BASE64),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_ends_its_request_alone(engine: Lone, name: str) -> None:
    good = prompt(picture_file(*SIZE), "good")
    engine.post(replace(submit_of(good), request_id=m.RequestId("good")))
    ask(engine, BROKEN[name], "broken")
    settle(engine)
    error = error_of(engine, "broken")
    assert error.kind is m.ErrorKind.INVALID
    assert error.message.startswith("messages[0].content[1] is refused: ")
    assert len(engine.tokens("good")) == 4
    engine.assert_at_rest()
    assert_idle(engine)


def test_a_picture_with_neither_file_nor_patches_is_refused(engine: Lone) -> None:
    made = prompt(b"")
    made.pictures = [replace(one, file=None) for one in made.pictures]
    ask(engine, made, "none")
    assert "neither a file nor patches" in error_of(engine, "none").message


def test_an_aborted_request_leaves_no_wish(engine: Lone) -> None:
    made = prompt(picture_file(*SIZE))
    engine.post(submit_of(made))
    for _ in range(4):
        engine.step()
    assert encoder(engine).counts.decoded == 1
    engine.post(m.Abort(m.RequestId("r")))
    engine.run()
    engine.assert_at_rest()
    assert_idle(engine)
    assert len(ask(engine, made, "later")) == 4


def test_a_killed_decoder_is_replaced(engine: Lone) -> None:
    assert len(ask(engine, prompt(picture_file(*SIZE)), "first")) == 4
    (worker,) = encoder(engine)._files._decoders._idle
    worker.kill()
    ask(engine, prompt(picture_file(*SIZE), "b", behind=81), "lost")
    error = error_of(engine, "lost")
    assert error.kind is m.ErrorKind.OVERLOADED and "ask again" in error.message
    assert len(ask(engine, prompt(picture_file(*SIZE), "b", behind=82), "again")) == 4
    assert_idle(engine)
