"""The tokens that a draft may be; they do not change the answers."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.speculation.drafting import MtpDrafter
from tasuki.model.config_json import ModelConfigError
from tasuki.model.drafts import FILE, DraftHead, draft_ids
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.weights.matrix import Matrix
from tests.harness.engines import Lone, engine_config
from tests.harness.goldens import golden, reference_dir

MODEL = reference_dir("small-dense")
PROMPT = golden("small-dense", "long").prompt
NEW = 24
HOT = SamplingParams(max_new_tokens=NEW, temperature=100.0, seed=3, ignore_eos=True)
GREEDY = SamplingParams(max_new_tokens=NEW, ignore_eos=True)


def test_the_first_ids_and_all_that_a_tokenizer_adds(tmp_path: Path) -> None:
    added = [
        {"id": 99_990, "content": "<tool_call>"},
        {"id": 120_000, "content": "not the model's"},
    ]
    specification = json.dumps({"added_tokens": added})
    (tmp_path / "tokenizer.json").write_text(specification, encoding="utf-8")
    ids = draft_ids(tmp_path, 100_000, (99_999, 5))
    assert ids is not None
    assert ids.tolist() == [*range(32_768), 99_990, 99_999]
    assert draft_ids(tmp_path, 2048, (7,)) is None
    (tmp_path / FILE).write_text("[9, 2, 9, 40000]", encoding="utf-8")
    listed = draft_ids(tmp_path, 100_000, (99_999,))
    assert listed is not None and listed.tolist() == [2, 9, 40_000]


BROKEN = ("[", "{}", "[]", "[1.5]", "[true]", '["a"]', "[-1]", "[320]", "[" * 100_000)


@pytest.mark.parametrize("text", BROKEN, ids=range(len(BROKEN)))
def test_a_list_that_is_none_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text, encoding="utf-8")
    with pytest.raises(ModelConfigError, match=f"{FILE}.*fix it or remove it"):
        draft_ids(tmp_path, 320, ())


def test_rows_that_share_scales_are_not_taken_apart() -> None:
    head = Matrix.of(torch.randn(6, 4))
    assert DraftHead.of(head, None) is None
    rows = DraftHead.of(head, torch.tensor([1, 4]))
    assert rows is not None and torch.equal(rows.head.plain, head.plain[[1, 4]])


def checkpoint(folder: Path, ids: list[int] | None) -> Path:
    shutil.copytree(MODEL, folder)
    if ids is not None:
        (folder / FILE).write_text(json.dumps(ids), encoding="utf-8")
    return folder


@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
def test_answers_are_the_same_whatever_drafts_may_be(
    sampling: SamplingParams, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[int] = set()
    guessed = MtpDrafter.guessed

    def noted(self: MtpDrafter, tokens: tuple[int, ...], behind: int) -> None:
        seen.update(tokens)
        guessed(self, tokens, behind)

    monkeypatch.setattr(MtpDrafter, "guessed", noted)
    answers, accepted = [], {}
    few = list(range(3, 320, 8))
    cases = {"off": None, "any": None, "every": [*range(320)], "few": few}
    for name, ids in cases.items():
        seen.clear()
        model = checkpoint(tmp_path / name, ids)
        speculate = "off" if name == "off" else "mtp"
        config = engine_config(model, speculate=speculate, draft_tokens=3)
        engine = Lone(config, parts=build_parts(config))
        answers.append(engine.ask("r", PROMPT, NEW, sampling=sampling))
        usage = engine.finished("r").usage
        accepted[name] = (usage.drafted_tokens, usage.accepted_tokens)
        assert answers[0] == answers[-1]
        engine.assert_at_rest()
    assert accepted["any"] == accepted["every"]
    # The last ones seen are those of the few.
    assert seen and seen <= set(few)
