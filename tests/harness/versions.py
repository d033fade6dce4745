"""Versions of a small model's weights: checkpoint folders, and the reference answers of each."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tasuki.engine import messages as m
from tests.harness.engines import Lone, engine_config
from tests.harness.waiting import HANG_SECONDS

SMALL = Path(__file__).parents[1] / "golden_models" / "small-moe"


def version(folder: Path, seed: int, model: Path = SMALL) -> Path:
    """Write a folder with the model's weights, each changed at random; a vision tower stays. Return
    the folder."""
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("golden*"))
    noise = torch.Generator().manual_seed(seed)
    for path in folder.glob("*.safetensors"):
        path.chmod(0o600)
        tensors = {
            name: tensor
            if "visual" in name
            else tensor * (1 + 0.3 * torch.randn(tensor.shape, generator=noise)).to(tensor.dtype)
            for name, tensor in load_file(path).items()
        }
        save_file(tensors, path)
    return folder


class Oracle:
    """Answers of one version without a cache: each prompt alone, in a node started with it."""

    def __init__(self, folder: Path) -> None:
        self._lone = Lone(engine_config(folder, prefill_chunk_tokens=4096))
        self._known: dict[tuple[int, ...], list[int]] = {}

    def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        known = self._known.get(tuple(prompt), [])
        if len(known) < count:
            self._lone.flush()
            known = self._known[tuple(prompt)] = self._lone.ask("r", prompt, count)
        return known[:count]


def update(lone: Lone, folder: Path, mode: m.PauseMode, name: str = "") -> m.WeightsUpdated:
    """Update an engine's weights, and return its answer. The engine goes on meanwhile."""
    lone.post(m.UpdateWeights(0, str(folder), mode, name))
    return updated(lone)


def updated(lone: Lone) -> m.WeightsUpdated:
    """Step until an update is answered, and return the answer."""
    before, until = len(lone.all_said(m.WeightsUpdated)), time.monotonic() + HANG_SECONDS
    while len(found := lone.all_said(m.WeightsUpdated)) == before:
        assert time.monotonic() < until, "the update is not answered"
        if not lone.step():
            time.sleep(0.001)
    return found[-1]


def assert_drawn_by(
    lone: Lone, name: str, prompt: Sequence[int], versions: dict[str, Oracle]
) -> None:
    """Check an answer token by token: each run equals the answer of its version to the prompt and
    the tokens before."""
    tokens, runs = lone.tokens(name), lone.finished(name).weights
    runs = runs or (m.WeightsRun(0, m.START_VERSION),)
    for run, end in zip(runs, [*(run.first for run in runs[1:]), len(tokens)], strict=True):
        expected = versions[run.version].answer([*prompt, *tokens[: run.first]], end - run.first)
        assert tokens[run.first : end] == expected, (name, run)
