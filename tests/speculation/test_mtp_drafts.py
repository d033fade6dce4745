"""The model's own draft layer as the drafter. Answers and tree are as without it, and drafts equal
the layer's expectation. As many are accepted after a cached prompt as after a computed one."""

from functools import cache

import pytest

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.config import EngineConfigError
from tasuki.engine.speculation.drafting import MtpDrafter
from tasuki.model.forward import Batch, SequenceSlice
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, engine_config, submit, tiny_engine
from tests.harness.goldens import Request, Workspace, golden, reference_dir

MODEL = "small-dense"
CASE = golden(MODEL, "long")
NEW = 32
GREEDY = SamplingParams(max_new_tokens=NEW, ignore_eos=True)
HOT = SamplingParams(max_new_tokens=NEW, temperature=100.0, seed=3, ignore_eos=True)
"""Sampling decided mostly by the noise shared with drafts, so that a layer of random weights is
right."""


def parts(**changes: object) -> EngineParts:
    return build_parts(engine_config(reference_dir(MODEL), **changes))


def drafting(most: int = 3, **changes: object) -> Lone:
    config = engine_config(
        reference_dir(MODEL),
        speculate="mtp",
        draft_tokens=most,
        prefill_chunk_tokens=64,
        **changes,
    )
    return Lone(config, parts=parts(**changes))


@cache
def plain(sampling: SamplingParams) -> tuple[list[int], object]:
    """Return its answer and its tree without drafts."""
    engine = Lone(engine_config(reference_dir(MODEL), speculate="off"), parts=parts())
    return engine.ask("r", CASE.prompt, NEW, sampling=sampling), engine.tree()


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("sampling", [GREEDY, HOT], ids=["greedy", "hot"])
def test_answers_and_trees_are_those_without_it(most: int, sampling: SamplingParams) -> None:
    engine = drafting(most)
    answer, tree = plain(sampling)
    assert engine.ask("r", CASE.prompt, NEW, sampling=sampling) == answer
    assert engine.tree() == tree
    usage = engine.finished("r").usage
    assert usage.drafted_tokens >= usage.accepted_tokens
    assert usage.accepted_prediction_tokens is None
    (use,) = usage.drafts
    assert (use.source, len(use.drafted)) == ("mtp", most)
    assert (sum(use.drafted), sum(use.accepted)) == (usage.drafted_tokens, usage.accepted_tokens)
    assert list(use.accepted) == sorted(use.accepted, reverse=True)
    assert list(use.drafted) == sorted(use.drafted, reverse=True)
    if sampling is HOT:
        assert usage.accepted_tokens > NEW // 3
    engine.assert_at_rest()


def test_drafts_are_what_the_layer_expects(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, ...], int]] = []
    guessed = MtpDrafter.guessed

    def noted(self: MtpDrafter, tokens: tuple[int, ...], behind: int) -> None:
        seen.append((tokens, behind))
        guessed(self, tokens, behind)

    monkeypatch.setattr(MtpDrafter, "guessed", noted)
    engine = drafting(2)
    answer = engine.ask("r", CASE.prompt, NEW, sampling=GREEDY)
    model = engine.parts.model
    assert len(seen) >= NEW - 4
    for drafts, behind in seen[:: len(seen) // 6]:
        if not drafts:
            continue
        tokens = CASE.prompt + answer[:behind]
        one = Request(Workspace(model), len(tokens) + 4)
        one.forward(tokens)
        # Its entries exist; the hidden state before the last token comes from one token less.
        shorter = Request(Workspace(model), len(tokens) + 4)
        shorter.forward(tokens[:-1])
        hidden = shorter.workspace.arena.views("carry")[0][shorter.slots[0]].float()[None]
        expected = []
        for step, token in enumerate((tokens[-1], *drafts[:-1])):
            place = len(tokens) - 1 + step
            batch = Batch.pack([SequenceSlice([token], place, one.pages, one.slots[0], None)])
            logits, hidden = model.draft_logits(hidden, batch, one.workspace.arena)
            expected.append(int(logits[0].argmax()))
        assert list(drafts) == expected


def test_as_many_are_accepted_behind_a_cached_prompt() -> None:
    engine = drafting()
    cold = engine.ask("cold", CASE.prompt, NEW, sampling=HOT)
    counts = [engine.finished("cold").usage]
    assert engine.ask("warm", CASE.prompt, NEW, sampling=HOT) == cold
    counts.append(engine.finished("warm").usage)
    assert engine.hit("warm").usable_tokens > 64
    assert counts[0].drafted_tokens == counts[1].drafted_tokens
    assert counts[0].accepted_tokens == counts[1].accepted_tokens > 0


def test_a_handed_over_answer_is_drafted_where_it_is_decoded() -> None:
    asked = submit("r", CASE.prompt, NEW, sampling=HOT)
    with engine_pair(parts(), parts(), settings={"speculate": "mtp", "draft_tokens": 3}) as pair:
        transfer = pair.hand_over(asked)
        pair.ready(transfer, None)
        assert isinstance(pair.done(transfer), m.RemoteDone)
        pair.decode.run()
        assert pair.decode.tokens("r") == plain(HOT)[0]
        assert pair.decode.finished("r").usage.accepted_tokens > NEW // 3
        pair.decode.assert_at_rest()


@pytest.mark.parametrize("slabs", [6, 8])
def test_guesses_take_no_room_that_others_need(slabs: int) -> None:
    few = parts()
    few = EngineParts(few.model_config, few.model, few.arena, few.steps, slabs=slabs)
    config = engine_config(reference_dir(MODEL), speculate="mtp", draft_tokens=4)
    engine = Lone(config, parts=few)
    prompts = {f"r{i}": CASE.prompt[i : i + 90] for i in range(3)}
    engine.ask_all(prompts, 40)
    alone = Lone(engine_config(reference_dir(MODEL), speculate="off"), parts=parts())
    for name, tokens in prompts.items():
        assert engine.tokens(name) == alone.ask(name, tokens, 40)
    engine.assert_at_rest()


def test_without_the_layer_it_is_refused_by_name() -> None:
    with pytest.raises(EngineConfigError, match="no draft layer"):
        tiny_engine(speculate="mtp")
    with pytest.raises(EngineConfigError, match="--draft-layer auto"):
        drafting(draft_layer="off")
