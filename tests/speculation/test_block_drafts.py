"""A block drafter as the drafter. Answers and tree are as without it, and drafts equal its naive
twin's. As many are accepted after a cached prompt as after a computed one."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfigError
from tasuki.engine.messages import RequestPhase
from tasuki.engine.speculation.drafting import BlockDrafter
from tasuki.model.families.registry import load_config
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.daemon.dry_run import dry_run
from tasuki.server.daemon.serve_config import DryRunConfig
from tests.harness.block_drafters import MODEL, NaiveDrafter, raw_for, streams_of, write_drafter
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import golden, reference_dir
from tests.harness.picture_goldens import PictureModel, golden_cases, needs_goldens
from tests.harness.picture_prompts import ask, golden_case, golden_submit, picture_engine

CASE = golden(MODEL, "long")
NEW = 32
GREEDY = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
HOT = SamplingParams(max_new_tokens=NEW, temperature=100.0, seed=3, ignore_eos=True)
"""Sampling decided mostly by the noise shared with drafts, so that random weights are right."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_drafter(tmp_path_factory.mktemp("drafter"))


@cache
def parts(folder: Path) -> EngineParts:
    return build_parts(engine_config(reference_dir(MODEL), drafter=str(folder)))


def drafting(folder: Path, most: int = 7, **changes: object) -> Lone:
    config = engine_config(
        reference_dir(MODEL),
        drafter=str(folder),
        draft_tokens=most,
        **{"prefill_chunk_tokens": 64, "speculate": "block"} | changes,
    )
    engine = Lone(config, parts=parts(folder))
    engine.flush()
    return engine


@cache
def plain(sampling: SamplingParams) -> tuple[list[int], object]:
    """Return the answer and the tree of an engine without drafts and drafter."""
    engine = Lone(engine_config(reference_dir(MODEL), speculate="off"))
    return engine.ask("r", CASE.prompt, NEW, sampling=sampling), engine.tree()


@pytest.mark.parametrize("most", [7, 1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
def test_answers_and_trees_are_those_without_it(
    folder: Path, most: int, sampling: SamplingParams
) -> None:
    engine = drafting(folder, most)
    answer, tree = plain(sampling)
    assert engine.ask("r", CASE.prompt, NEW, sampling=sampling) == answer
    assert engine.tree() == tree
    usage = engine.finished("r").usage
    (use,) = usage.drafts
    assert (use.source, len(use.drafted)) == ("block", most)
    assert (sum(use.drafted), sum(use.accepted)) == (usage.drafted_tokens, usage.accepted_tokens)
    if sampling is HOT:
        assert usage.accepted_tokens > NEW // 3
    engine.assert_at_rest()


def test_drafts_are_those_of_the_twin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, ...], int]] = []
    guessed = BlockDrafter.guessed

    def noted(self: BlockDrafter, tokens: tuple[int, ...], behind: int) -> None:
        seen.append((tokens, behind))
        guessed(self, tokens, behind)

    monkeypatch.setattr(BlockDrafter, "guessed", noted)
    answer = drafting(folder, 5).ask("r", CASE.prompt, NEW, sampling=GREEDY)
    naive = NaiveDrafter(folder)
    streams = streams_of(CASE.prompt + answer)
    made = [(drafts, behind) for drafts, behind in seen if drafts]
    assert len(made) > NEW // 2
    for drafts, behind in made:
        known = len(CASE.prompt) + behind - 1
        before = [stream[:known] for stream in streams]
        logits = naive.logits(before, answer[behind - 1], len(drafts))
        assert list(drafts) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("form", [{"kv_dtype": "fp8"}, {"dtype": "bfloat16"}], ids=str)
def test_answers_in_other_dtypes_are_those_without_it(folder: Path, form: dict[str, str]) -> None:
    plain = Lone(engine_config(reference_dir(MODEL), speculate="off", **form))
    config = engine_config(reference_dir(MODEL), drafter=str(folder), draft_tokens=7, **form)
    engine = Lone(config)
    answers = [each.ask("r", CASE.prompt, NEW, sampling=HOT) for each in (plain, engine)]
    assert answers[0] == answers[1]
    assert engine.finished("r").usage.accepted_tokens > NEW // 3


@needs_goldens
def test_answers_to_pictures_are_the_goldens(tmp_path: Path) -> None:
    """Tokens of pictures have three rotary positions in the model, and one in the drafter."""
    model, case = golden_cases()[0]
    shape = load_config(PictureModel.load(model).folder)
    drafter = write_drafter(tmp_path, raw_for(shape))
    engine = picture_engine(model, drafter=str(drafter), draft_tokens=7)
    message = golden_submit(model, case)
    assert ask(engine, message) == golden_case(model, case).values["greedy"]
    (use,) = engine.finished(message.request_id).usage.drafts
    assert use.source == "block" and use.drafted[0] > 0
    engine.assert_at_rest()


def test_as_many_are_accepted_behind_a_cached_prompt(folder: Path) -> None:
    engine = drafting(folder)
    cold = engine.ask("cold", CASE.prompt, NEW, sampling=HOT)
    assert engine.ask("warm", CASE.prompt, NEW, sampling=HOT) == cold
    counts = [engine.finished(name).usage for name in ("cold", "warm")]
    assert engine.hit("warm").usable_tokens > 64
    assert counts[0].drafted_tokens == counts[1].drafted_tokens
    assert counts[0].accepted_tokens == counts[1].accepted_tokens > 0
    engine.assert_at_rest()


def test_a_retracted_answer_goes_on_and_is_drafted(folder: Path) -> None:
    """Two answers outgrow the arena. The retracted one resumes from its cached pages."""
    whole, new = parts(folder), 100
    few = EngineParts(whole.model_config, whole.model, whole.arena, whole.steps, slabs=9)
    config = engine_config(reference_dir(MODEL), drafter=str(folder), draft_tokens=7)
    assert config.speculate == "auto"
    engine = Lone(config, parts=few)
    alone = Lone(engine_config(reference_dir(MODEL), speculate="off"))
    asked = {
        f"r{seed}": (CASE.prompt[seed : seed + 60], replace(HOT, max_new_tokens=new, seed=seed))
        for seed in range(2)
    }
    for name, (tokens, sampling) in asked.items():
        engine.post(submit(name, tokens, new, sampling=sampling))
    engine.run()
    assert RequestPhase.RETRACTED in engine.phases("r1")
    for name, (tokens, sampling) in asked.items():
        assert engine.tokens(name) == alone.ask(name, tokens, new, sampling=sampling)
        assert engine.finished(name).usage.accepted_tokens > new // 2
    engine.assert_at_rest()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"drafter": None}, "no drafter: give its folder with --drafter"),
        ({"drafter": ""}, "drafter is empty"),
        ({"speculate": "mtp"}, "takes the draft layer's place: give --speculate block"),
        ({"speculate": "mtp+tree"}, "leave --drafter out"),
        ({"device": "cuda"}, "device is cuda, .* no kernels"),
        ({"device": "cuda:1"}, "give --device cpu"),
        ({"tensor_parallel": 2}, "give --tensor-parallel 1"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    folder: Path, changes: dict[str, object], named: str
) -> None:
    settings = {"drafter": str(folder), "speculate": "block"} | changes
    with pytest.raises(EngineConfigError, match=named):
        engine_config(reference_dir(MODEL), **settings)


def test_a_dry_run_shows_its_bytes(folder: Path) -> None:
    config = engine_config(reference_dir(MODEL), drafter=str(folder))
    plan = dry_run(config, DryRunConfig())
    assert "the block drafter has no kernels for GPUs" in plan
    assert "up to 7 drafts in one pass" in plan
    assert "block_drafter" in plan and "kv [2, 2, 64, 32]" in plan


def test_more_drafts_than_the_drafter_proposes_are_refused(folder: Path) -> None:
    with pytest.raises(EngineConfigError, match="draft_tokens is 8, and the drafter proposes 7"):
        drafting(folder, 8)
