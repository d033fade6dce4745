"""Three-axis positions: goldens, the naive reference, parts, refusals, and whole golden answers."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.model.vision.config import PictureTokens
from tasuki.model.vision.grid import PictureGrid
from tasuki.model.vision.prompt_positions import (
    PictureKind,
    PicturePlaceError,
    PictureRun,
    PromptLayout,
    PromptPicture,
    prompt_layout,
    prompt_positions,
    rotary_axes,
)
from tests.harness.covering import slow_behind
from tests.harness.goldens import Request, Workspace
from tests.harness.picture_goldens import PictureModel, golden_cases, model_of, needs_goldens
from tests.model.vision_twin import reference_positions

IDS = PictureTokens(start=90, end=91, image=92, video=93)
TEXT = st.integers(0, 89)
CASES = {f"{model}-{case}": (model, case) for model, case in golden_cases()}
QUICK_FIRST = dict(
    sorted(CASES.items(), key=lambda named: named[1][1] not in ("middle", "video", "turn2"))
)


def picture(rows: int, columns: int, kind: PictureKind = PictureKind.IMAGE) -> PromptPicture:
    return PromptPicture(kind, PictureGrid(2 * rows, 2 * columns, 2))


def framed(*pictures: PromptPicture) -> list[int]:
    tokens: list[int] = []
    for one in pictures:
        pad = IDS.image if one.kind is PictureKind.IMAGE else IDS.video
        tokens += [IDS.start, *[pad] * one.grid.tokens, IDS.end]
    return tokens


@needs_goldens
@pytest.mark.parametrize(("model_name", "case_name"), golden_cases())
def test_positions_equal_the_golden_ones(model_name: str, case_name: str) -> None:
    model = PictureModel.load(model_name)
    case = model.case(case_name)
    layout = model.layout(case)
    prompt = case.values["prompt"]
    found = layout.positions(0, len(prompt))
    assert found.dtype == torch.int64
    assert torch.equal(found, case.positions.long())
    assert layout.delta == case.values["position_delta"]
    runs = case.values["runs"]
    places = [(run["start"], run["rows"], run["columns"]) for run in runs]
    assert layout.runs == tuple(PictureRun(*place) for place in places)
    assert [int(found[0, run["start"]]) for run in runs] == [run["position"] for run in runs]


@needs_goldens
@pytest.mark.parametrize(("model_name", "case_name"), slow_behind(9, QUICK_FIRST))
def test_golden_answers_follow_from_rows_and_positions(model_name: str, case_name: str) -> None:
    golden = PictureModel.load(model_name)
    case = golden.case(case_name)
    pictures = [patches for item in case.items for patches in golden.patches(item)]
    rows = [golden.tower.rows(patches) for patches in pictures]
    model, ids = model_of(golden, golden.layout(case), case.values["prompt"], rows)
    greedy = case.values["greedy"]
    for chunk in (len(ids), 37):
        request = Request(Workspace(model), len(ids) + len(greedy))
        for start in range(0, len(ids), chunk):
            logits = request.forward(ids[start : start + chunk])
        difference = float((logits - case.last_logits).abs().max())
        assert difference <= golden.tolerance["fp32_logits_abs"]
        assert request.greedy(logits, len(greedy)) == greedy


pictures = st.builds(picture, st.integers(1, 5), st.integers(1, 5), st.sampled_from([*PictureKind]))
pieces = st.lists(st.one_of(pictures, st.lists(TEXT, max_size=6)), max_size=8)


def prompt_of(
    parts: list[PromptPicture | list[int]],
) -> tuple[list[int], list[PromptPicture]]:
    tokens: list[int] = []
    found: list[PromptPicture] = []
    for part in parts:
        if isinstance(part, PromptPicture):
            tokens += framed(part)
            found.append(part)
        else:
            tokens += part
    return tokens, found


@settings(max_examples=150)
@given(parts=pieces)
def test_positions_equal_the_reference(parts: list[PromptPicture | list[int]]) -> None:
    tokens, placed = prompt_of(parts)
    wanted, delta = reference_positions(tokens, [one.grid for one in placed], IDS)
    found, found_delta = prompt_positions(tokens, placed, IDS)
    assert torch.equal(found, wanted) and found_delta == delta <= 0


@settings(max_examples=150)
@given(parts=pieces, cut=st.data())
def test_a_part_has_the_positions_of_the_whole(
    parts: list[PromptPicture | list[int]], cut: st.DataObject
) -> None:
    tokens, placed = prompt_of(parts)
    layout = prompt_layout(tokens, placed, IDS)
    # Beyond the prompt too: an answer's token has its index plus the delta.
    length = len(tokens) + 5
    whole = layout.positions(0, length)
    assert (
        whole[:, len(tokens) :].tolist()
        == [[index + layout.delta for index in range(len(tokens), length)]] * 3
    )
    start = cut.draw(st.integers(0, length))
    stop = cut.draw(st.integers(start, length))
    assert torch.equal(layout.positions(start, stop), whole[:, start:stop])


def test_the_published_example() -> None:
    tokens = [*[1] * 56, *framed(picture(4, 3)), *[1] * 34]
    positions, delta = prompt_positions(tokens, [picture(4, 3)], IDS)
    assert delta == -8 and len(tokens) == 104
    assert positions[:, :57].tolist() == [list(range(57))] * 3
    assert positions[:, 57:69].tolist() == [
        [57] * 12,
        [57 + at // 3 for at in range(12)],
        [57 + at % 3 for at in range(12)],
    ]
    assert positions[:, 69].tolist() == [61] * 3


def test_text_has_no_delta() -> None:
    positions, delta = prompt_positions([1, 2, 3], [], IDS)
    assert positions.tolist() == [[0, 1, 2]] * 3 and delta == 0
    assert PromptLayout(()).positions(7, 7).shape == (3, 0)


@pytest.mark.parametrize(
    ("tokens", "placed", "place", "message"),
    [
        ([1, 92], [], 1, "a placeholder has no picture"),
        ([1, 93, 2], [], 1, "a placeholder has no picture"),
        ([1, 2], [picture(1, 1)], 2, "1 pictures have no placeholders"),
        ([92, 91], [picture(1, 1)], 0, "no token 90 opens the picture"),
        ([1, 92, 91], [picture(1, 1)], 1, "no token 90 opens the picture"),
        ([90, 92, 92, 91], [picture(1, 1)], 1, "2 placeholders stand for a picture of 1 tokens"),
        ([90, 92, 91], [picture(1, 2)], 1, "1 placeholders stand for a picture of 2 tokens"),
        ([90, 92, 92], [picture(1, 3)], 1, "2 placeholders stand for a picture of 3 tokens"),
        ([90, 93, 91], [picture(1, 1)], 1, "a placeholder of video meets a picture of image"),
        ([90, 92, 93], [picture(1, 2)], 1, "1 placeholders stand for a picture of 2 tokens"),
        (
            [90, 92, 91, 92],
            [picture(1, 1), picture(1, 1)],
            3,
            "no token 90 opens the picture",
        ),
    ],
)
def test_prompts_that_disagree_with_their_pictures_are_refused(
    tokens: list[int], placed: list[PromptPicture], place: int, message: str
) -> None:
    with pytest.raises(PicturePlaceError, match=message) as caught:
        prompt_layout(tokens, placed, IDS)
    assert caught.value.place == place and str(caught.value).startswith(f"token {place}: ")


def test_runs_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="begins inside"):
        PromptLayout((PictureRun(3, 2, 2), PictureRun(6, 1, 1)))
    with pytest.raises(ValueError, match="is no picture's place"):
        PictureRun(0, 0, 2)


@pytest.mark.parametrize(
    ("sections", "pairs", "axes"),
    [
        ((3, 3, 2), 8, "01201201"),
        ((2, 1, 1), 4, "0120"),
        ((11, 11, 10), 32, "012" * 10 + "01"),
        ((8, 4, 4), 16, "012012012012" + "0000"),
    ],
)
def test_axes_of_rotary_pairs_are_interleaved(
    sections: tuple[int, int, int], pairs: int, axes: str
) -> None:
    assert rotary_axes(sections, pairs).tolist() == [int(axis) for axis in axes]
