"""Updates of weights on two ranks: all ranks change between the same two plans, or none does."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tasuki.engine.messages import START_VERSION, PauseMode
from tests.harness.engines import prompt, submit
from tests.harness.random_checkpoint import CONFIG, write_random_weights
from tests.harness.rank_engines import rank_engine
from tests.harness.versions import Oracle, assert_drawn_by, update, version

PROMPTS = {f"r{n}": prompt(70 + 30 * n, seed=n) for n in range(2)}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("versions")
    model = root / "model"
    write_random_weights(model, CONFIG)
    names = (START_VERSION, "2", "bad")
    found = {name: version(root / name, seed, model) for seed, name in enumerate(names)}
    path = found["bad"] / "model.safetensors"
    tensors = load_file(path)
    # The last columns are of the second rank alone.
    name = next(name for name in tensors if "down_proj" in name)
    tensors[name][..., -1] = torch.nan
    save_file(tensors, path)
    return found


def test_two_ranks_change_together_or_not_at_all(folders: dict[str, Path]) -> None:
    oracles = {name: Oracle(folders[name]) for name in (START_VERSION, "2")}
    with rank_engine(folders[START_VERSION], tensor_parallel=2) as lone:
        for name, tokens in PROMPTS.items():
            lone.post(submit(name, tokens, 8))
        lone.steps(4)
        refused = update(lone, folders["bad"], PauseMode.RETRACT)
        assert refused.error is not None and "rank 1" in refused.error.message
        assert "NaN or infinite" in refused.error.message
        assert update(lone, folders["2"], PauseMode.RETRACT, "2").error is None
        lone.run()
        for name, tokens in PROMPTS.items():
            assert_drawn_by(lone, name, tokens, oracles)
        lone.ask("again", PROMPTS["r0"], 4)
        assert_drawn_by(lone, "again", PROMPTS["r0"], oracles)
        lone.assert_at_rest()
