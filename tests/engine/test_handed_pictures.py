"""Pictures of another node's prompt: what a peer claims is computed anew, and what it does not send
ends its transfer alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages.picture_wire import runs_from_wire, runs_to_wire, wanted_from_wire
from tasuki.engine.messages.transfer_proto import InvalidReserve
from tasuki.engine.pictures.handed import handed_pictures
from tasuki.engine.pictures.placed import PictureShape
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.vision.prompt_positions import PicturePlaceError
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.keys import KeyedRun, Keys, PictureDigest, PromptTokens, prompt_keys
from tasuki.transfer.errors import PeerInvalid
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.tiny_pictures import (
    IMAGE,
    RULES,
    START,
    TOWER,
    assert_idle,
    encoder,
    seeing_parts,
)

ROWS, COLUMNS = 3, 4
TOKENS = ROWS * COLUMNS
SHAPE = PictureShape.of(TOWER, RULES, 1000)
SALT = b"salt"


def handed(start: int, name: bytes = b"a" * 32) -> m.HandedPicture:
    """Return a picture as its node names it. name: SHA-256 of its file."""
    file = m.FileIdentity(name, 20, 30)
    one = m.HandedPicture(start, ROWS, COLUMNS, "image", "exif", PictureDigest(b""), (file,))
    return replace(one, digest=one.source(RULES.factor, RULES.constants).digest)


def keys_of(*pictures: m.HandedPicture, length: int = 60) -> Keys:
    tokens = np.arange(1, length + 1, dtype=np.int32)
    runs = [KeyedRun(one.start, TOKENS, one.digest) for one in pictures]
    return prompt_keys(PromptTokens(tokens), runs)


def test_tokens_follow_from_keys_and_places() -> None:
    one, two = handed(10), handed(30, b"b" * 32)
    tokens, placed = handed_pictures(keys_of(one, two), (one, two), SHAPE)
    assert tokens[9] == tokens[29] == START
    assert (tokens[10:22] == IMAGE).all() and (tokens[30:42] == IMAGE).all()
    assert tokens[22:29].tolist() == list(range(23, 30)) and tokens.min() >= 0
    assert [item.run.start for item in placed.pictures] == [10, 30]
    assert not any(item.is_here for item in placed.pictures)


def test_a_prompt_may_end_inside_its_last_picture() -> None:
    one = handed(10)
    for length in (10, 11, 15, 21):
        tokens, placed = handed_pictures(Keys(keys_of(one)[:length]), (one,), SHAPE)
        assert len(tokens) == length and len(placed.pictures) == 1


Change = Callable[[m.HandedPicture], m.HandedPicture]
LIES: dict[str, Change] = {
    "digest": lambda one: replace(one, digest=PictureDigest(b"x" * 32)),
    "bytes": lambda one: replace(one, files=(m.FileIdentity(b"x" * 32, 20, 30),)),
    "place": lambda one: replace(one, start=one.start + 1),
    "shape": lambda one: replace(one, rows=COLUMNS, columns=ROWS),
    "size": lambda one: replace(one, rows=1 << 16, columns=1 << 16),
    "empty": lambda one: replace(one, rows=0),
    "kind": lambda one: replace(one, kind="sound"),
    "rule": lambda one: replace(one, orientation="none"),
    "files": lambda one: replace(one, files=one.files * 2),
    "first": lambda one: replace(one, start=0),
    "behind": lambda one: replace(one, start=61),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lie_about_a_picture_is_refused(name: str) -> None:
    one = handed(10)
    with pytest.raises(PicturePlaceError):
        handed_pictures(keys_of(one), (LIES[name](one),), SHAPE)


def test_keys_without_a_picture_and_pictures_twice_are_refused() -> None:
    one = handed(10)
    with pytest.raises(PicturePlaceError, match="belongs to no picture"):
        handed_pictures(keys_of(one), (), SHAPE)
    with pytest.raises(PicturePlaceError, match="order them"):
        handed_pictures(keys_of(one), (one, one), SHAPE)
    with pytest.raises(PicturePlaceError, match="more than"):
        handed_pictures(keys_of(one), (one,) * (m.MOST_PICTURES + 1), SHAPE)


def run(**changes: Any) -> pb.PictureRun:
    fields = {"start": 1, "rows": 1, "columns": 1, "kind": 1, "digest": b"d" * 32}
    files = [pb.PictureFile(sha256=b"s" * 32, height=1, width=1)]
    return pb.PictureRun(**{**fields, "files": files, **changes})


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"kind": 0}, "kind"),
        ({"digest": b"d"}, "digest"),
        ({"orientation": "x" * 33}, "orientation"),
        ({"files": []}, "files"),
        ({"files": [pb.PictureFile(sha256=b"s" * 31)]}, "sha256"),
        ({"files": [pb.PictureFile(sha256=b"s" * 32)] * 3}, "files"),
    ],
)
def test_a_run_out_of_bounds_is_refused_by_its_field(changes: Any, field: str) -> None:
    with pytest.raises(InvalidReserve, match=field):
        runs_from_wire([run(**changes)])
    with pytest.raises(InvalidReserve, match="at most"):
        runs_from_wire([run()] * (m.MOST_PICTURES + 1))


@pytest.mark.parametrize("indices", [[], [2], [0, 0], [1] * 100_000, [0, 1, 0]])
def test_wishes_out_of_bounds_are_refused(indices: list[int]) -> None:
    assert wanted_from_wire(pb.PicturesWanted(generation=3, pictures=[1, 0]), 3, 2) == (1, 0)
    with pytest.raises(PeerInvalid):
        wanted_from_wire(pb.PicturesWanted(generation=3, pictures=indices), 3, 2)
    with pytest.raises(PeerInvalid, match="generation"):
        wanted_from_wire(pb.PicturesWanted(generation=4, pictures=[0]), 3, 2)


@contextmanager
def pair() -> Iterator[EnginePair]:
    with engine_pair(seeing_parts(), seeing_parts()) as both:
        yield both
        both.prefill.assert_at_rest()
        assert_idle(both.prefill)


def reserve(
    keys: Keys, *pictures: m.HandedPicture, number: int = 5, offered: int = 0, new: int = 4
) -> m.PrefillReserve:
    sampling = SamplingParams(max_new_tokens=new)
    request = m.TransferRequest(m.TransferId(number), 1, 0, sampling, SALT, offered=offered)
    return m.PrefillReserve(request, keys, "peer", pictures)


def refusal(both: EnginePair) -> str:
    return both.prefill.all_said(m.PrefillRefused)[-1].error.message


def test_pictures_are_asked_for_before_memory_is_held() -> None:
    one, two = handed(10), handed(30, b"b" * 32)
    with pair() as both:
        both.prefill.post(reserve(keys_of(one, two), one, two))
        both.prefill.run()
        (asked,) = both.prefill.all_said(m.PicturesWanted)
        assert asked == m.PicturesWanted(m.TransferId(5), (0, 1))
        stats = both.prefill.stats()
        assert stats.requests == {"AwaitingMedia": 1}
        assert stats.pages["working"] == stats.slots["working"] == 0
        assert not both.prefill.all_said(m.PrefillAccepted)
        both.prefill.post(m.PrefillEnd(m.TransferId(5)))
        both.prefill.run()
        (ended,) = both.prefill.all_said(m.TransferEnded)
        assert [mark.state for mark in ended.life] == ["AwaitingMedia", "Aborted"]
        # Pictures that cross the end are dropped.
        both.prefill.post(m.PicturesCame(m.TransferId(5), {0: (b"1",)}))


def test_a_file_that_is_no_picture_ends_its_transfer() -> None:
    one = handed(10)
    with pair() as both:
        both.prefill.post(reserve(keys_of(one), one))
        both.prefill.run()
        both.prefill.post(m.PicturesCame(m.TransferId(5), {0: (b"no picture",)}))
        both.prefill.run()
        (accepted,) = both.prefill.all_said(m.PrefillAccepted)
        grant = m.Grant(accepted.transfer_id, 1, 1, (), None)
        both.prefill.post(m.PrefillStart(grant))
        both.prefill.settle()
        assert "picture 1 of the prompt is refused" in refusal(both)
        both.prefill.post(m.PrefillEnd(m.TransferId(5)))
        both.prefill.run()


def test_lies_never_reach_a_cache() -> None:
    one = handed(10)
    with pair() as both:
        both.prefill.post(reserve(keys_of(one), replace(one, digest=PictureDigest(b"x" * 32))))
        both.prefill.run()
        assert "digest" in refusal(both)
        assert not both.prefill.all_said(m.PicturesWanted)


def test_a_state_of_unknown_pictures_is_pulled_or_refused() -> None:
    """A leaving node's state comes by its keys. Without its pull nothing is computed for it."""
    one = handed(10)
    keys = keys_of(one)
    with pair() as both:
        both.prefill.post(reserve(keys, number=6))
        both.prefill.run()
        assert "belongs to no picture" in refusal(both)
        both.prefill.post(reserve(keys, number=7, offered=len(keys) - 1, new=1))
        both.prefill.run()
        (pull,) = both.prefill.all_said(m.PullWanted)
        both.prefill.post(m.PullLost(pull.grant.transfer_id))
        both.prefill.post(m.PullFenced(pull.grant.transfer_id))
        both.prefill.run()
        assert "was not pulled" in refusal(both)
        assert not both.prefill.all_said(m.PicturesWanted)
        both.prefill.post(m.PrefillEnd(m.TransferId(7)))
        both.prefill.run()
        assert encoder(both.prefill).counts.encoded == 0


def test_runs_survive_the_wire() -> None:
    one = handed(10)
    source = one.source(RULES.factor, RULES.constants)
    file = m.PictureFile(m.Media(b"1"), m.FileCoding.PLAIN, 20, 30, "here")
    sent = m.PromptPicture(10, ROWS, COLUMNS, one.digest, file=file, source=source)
    assert runs_from_wire([*runs_to_wire([sent])]) == (one,)


def test_a_leaving_nodes_state_with_pictures_is_passed_on() -> None:
    keys = Keys(keys_of(handed(10))[:40])
    with pair() as both:
        given = m.GivenState(1, keys, SALT, known=False)
        both.decode.post(m.PassOn(3, given, "holder", 5.0))
        both.decode.run()
        (fetch,) = both.decode.all_said(m.FetchWanted)
        assert fetch.prompt.tolist() == keys.tolist()
        both.decode.post(m.FetchLost(fetch.transfer_request.transfer_id, m.FetchOutcome.LOST))
        both.decode.run()
    blind = replace(seeing_parts(), tower=None, sight=None)
    with engine_pair(blind, replace(seeing_parts(), tower=None, sight=None)) as both:
        both.decode.post(m.PassOn(3, given, "holder", 5.0))
        both.decode.run()
        (passed,) = both.decode.all_said(m.StatePassedOn)
        assert passed.outcome is m.DrainTargetOutcome.DECLINED
