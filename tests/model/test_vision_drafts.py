"""The draft layer behind prompts with pictures: golden guesses, and entries by any cut."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.engine.pictures.placed import PictureShape, PlacedPictures, placed_pictures
from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import Batch, RowSpan, SequenceSlice
from tasuki.model.vision.pixels import PicturePatches
from tasuki.model.vision.prompt_positions import rotary_axes
from tests.harness.goldens import BESIDE, Request, Workspace
from tests.harness.picture_goldens import PictureModel, needs_goldens
from tests.harness.picture_prompts import golden_case, golden_submit
from tests.harness.qwen35 import load_config, load_weights

WITH_DRAFTS = ("vision-dense", "vision-moe")


def guessed_cases() -> dict[str, tuple[str, str]]:
    """Return the goldens with logits of the draft layer."""
    found = {}
    for model in WITH_DRAFTS:
        file = BESIDE / model / "golden.npz"
        if file.exists():
            with np.load(file) as arrays:
                names = [name.split(".")[0] for name in arrays.files if "mtp_last" in name]
            found |= {f"{model}-{case}": (model, case) for case in names}
    return found or {"none": ("none", "none")}


pytestmark = needs_goldens


@cache
def drafting_model(name: str) -> Qwen35Model:
    golden = PictureModel.load(name)
    config = replace(load_config(golden.folder), draft_layers=1)
    weights = load_weights(golden.folder, config, torch.float32)
    axes = rotary_axes(golden.config.rotary_sections, config.rotary_dim // 2)
    return Qwen35Model(config, weights, TorchBackend(config, axes=axes))


class SeeingRequest:
    """A golden prompt over a workspace with a draft layer."""

    def __init__(self, name: str, case: str) -> None:
        self.golden = PictureModel.load(name)
        config = self.golden.config
        submit = golden_submit(name, case)
        shape = PictureShape.of(config, self.golden.rules, 10**6)
        self.pictures: PlacedPictures | None = placed_pictures(submit, shape)
        self.prompt: list[int] = submit.prompt.tolist()
        self.request = Request(Workspace(drafting_model(name)), len(self.prompt) + 1)

    @property
    def delta(self) -> int:
        return 0 if self.pictures is None else self.pictures.layout.delta

    def forward(self, start: int, stop: int) -> Tensor:
        """Return logits [vocab] after the prompt's tokens [start, stop)."""
        item = self.request.slice(self.prompt[start:stop])
        if self.pictures is not None:
            item = replace(
                item,
                rope_positions=torch.tensor(self.pictures.rope_positions(start, stop)),
                pictures=self._spans(self.pictures, start, stop),
            )
        return self.request.workspace.forward(item)[0]

    def _spans(self, pictures: PlacedPictures, start: int, stop: int) -> list[RowSpan]:
        spans = []
        for span in pictures.spans(start, stop):
            picture = pictures.pictures[span.index]
            patches = PicturePatches(torch.from_numpy(picture.levels), picture.grid)
            rows = self.golden.tower.rows(patches)
            spans.append(RowSpan(span.token, rows[span.first : span.first + span.count]))
        return spans

    def whole(self, cuts: Sequence[int]) -> Tensor:
        """Return logits after the prompt, in parts that end at the cuts."""
        ends = sorted({cut for cut in cuts if 0 < cut < len(self.prompt)})
        for start, stop in pairwise([0, *ends, len(self.prompt)]):
            logits = self.forward(start, stop)
        return logits

    def guess(self, token: int) -> Tensor:
        """Return the draft layer's logits after a token that follows the prompt."""
        request = self.request
        arena = request.workspace.arena
        hidden = arena.views("carry")[0][request.slots[0]]
        one = SequenceSlice(
            [token], request.tokens, request.pages, *request.slots, rope_delta=self.delta
        )
        model = request.workspace.model
        return model.draft_logits(hidden[None].float(), Batch.pack([one]), arena)[0][0]

    def entries(self) -> Tensor:
        """Return the draft layer's keys and values of the prompt's tokens but the first."""
        kv = self.request.workspace.arena.views("kv")[-1][self.request.pages]
        places = kv.permute(2, 1, 0, 3, 4).flatten(2, 3)
        return places[:, :, 1 : len(self.prompt)].clone()


@pytest.mark.parametrize(("name", "case"), guessed_cases().values(), ids=guessed_cases())
@pytest.mark.parametrize("chunk", [None, 37])
def test_the_guess_behind_a_prompt_is_the_golden_one(
    name: str, case: str, chunk: int | None
) -> None:
    seeing = SeeingRequest(name, case)
    greedy = golden_case(name, case).values["greedy"]
    logits = seeing.whole(range(0, 10_000, chunk) if chunk else ())
    assert int(logits.argmax()) == greedy[0]
    guess = seeing.guess(greedy[0])
    with np.load(seeing.golden.folder / "golden.npz") as arrays:
        expected = torch.from_numpy(arrays[f"{case}.mtp_last_logits"])
    torch.testing.assert_close(guess, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("name", WITH_DRAFTS)
def test_entries_do_not_depend_on_the_cuts(name: str) -> None:
    whole = SeeingRequest(name, "middle")
    whole.whole(())
    for cuts in ([1], [57, 58], range(1, 200), range(0, 200, 64)):
        other = SeeingRequest(name, "middle")
        other.whole(cuts)
        torch.testing.assert_close(other.entries(), whole.entries(), atol=2e-4, rtol=0)
