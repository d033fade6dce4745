"""Pictures that are nearly the same inside an engine: equal bytes of another shape or orientation,
and keys that collide."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from tasuki.engine.messages import requests
from tasuki.pycache.keys import (
    KeyedRun,
    Keys,
    KeySource,
    PictureDigest,
    PictureSource,
    PromptTokens,
    picture_keys,
    prompt_keys,
)
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.engines import Lone, prompt
from tests.harness.tiny_pictures import START, Prompt, assert_idle, encoder, seeing_engine

BEFORE = 70


def asked(rows: int = 9, columns: int = 11, name: str = "a", before: int = BEFORE) -> Prompt:
    words = [token % 120 for token in prompt(before + 30)]
    return Prompt().text(words[:before]).picture(name, rows, columns).text(words[before:])


def ask(engine: Lone, made: Prompt, name: str) -> tuple[int, int]:
    """Return the request's KV tokens found, and its encodes."""
    before = encoder(engine).counts.encoded
    engine.ask(name, made.tokens, 4, pictures=tuple(made.pictures))
    assert_idle(engine)
    return engine.hit(name).kv_tokens, encoder(engine).counts.encoded - before


def named(made: Prompt, source: PictureSource) -> Prompt:
    made.pictures = [replace(one, digest=source.digest) for one in made.pictures]
    return made


def test_equal_bytes_of_another_shape_are_another_picture() -> None:
    """30 x 150 and 150 x 30: as many placeholders, the same levels."""
    tall, wide = asked(15, 3), asked(3, 15)
    assert tall.tokens == wide.tokens
    assert tall.pictures[0].levels.tobytes() == wide.pictures[0].levels.tobytes()  # type: ignore[union-attr]
    source = PictureSource("image", "exif", (b"one file",), 150, 30, "tiny")
    engine = seeing_engine()
    assert ask(engine, named(tall, source), "tall") == (0, 1)
    kv_tokens, encoded = ask(engine, named(wide, replace(source, height=30, width=150)), "wide")
    assert kv_tokens <= BEFORE and encoded == 1


@pytest.mark.parametrize("field", ["orientation", "constants", "kind"])
def test_equal_bytes_under_another_rule_are_another_picture(field: str) -> None:
    source = PictureSource("image", "exif", (b"one file",), 36, 44, "tiny")
    engine = seeing_engine()
    ask(engine, named(asked(), source), "first")
    other = replace(source, **{field: "other"})
    kv_tokens, encoded = ask(engine, named(asked(), other), "other")
    assert kv_tokens <= BEFORE and encoded == 1


def short_keys(digest: PictureDigest, count: int) -> NDArray[np.int32]:
    """Return keys with the first placeholder's cut to no bit of the digest."""
    keys = picture_keys(digest, count)
    keys[1] = -1
    return keys


def with_plain_opening(digest: PictureDigest, count: int) -> NDArray[np.int32]:
    """Return the same keys without the rule for the opening token."""
    keys = short_keys(digest, count)
    keys[0] = START
    return keys


@pytest.mark.parametrize(("source", "shared"), [(short_keys, 0), (with_plain_opening, 1)])
def test_the_keyed_opening_saves_pictures_whose_first_keys_collide(
    source: KeySource, shared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page ends right behind the first placeholder. Without the rule another picture is
    served from it."""

    def keyed(tokens: PromptTokens, runs: list[KeyedRun]) -> Keys:
        return prompt_keys(tokens, runs, source)

    monkeypatch.setattr(requests, "prompt_keys", keyed)
    before = PAGE_TOKENS - 2
    engine = seeing_engine()
    assert ask(engine, asked(before=before), "first") == (0, 1)
    kv_tokens, encoded = ask(engine, asked(name="b", before=before), "other")
    assert kv_tokens == shared * PAGE_TOKENS and encoded == 1
