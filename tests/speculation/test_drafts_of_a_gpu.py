"""Drafted answers on a GPU: the counted memory, and rejections by name."""

from dataclasses import dataclass, replace

import pytest
import torch

from tasuki.engine.assembly.engines import build_speculation, most_drafts
from tasuki.engine.assembly.memory_plan import MIB, MemoryPlan
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.speculation.drafting import DraftSource
from tasuki.model.config import DeltaNetConfig
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.gdn.verify.kept_inputs import KeptInputs, kept_bytes
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import submit, tiny_parts
from tests.harness.qwen35 import published_or_folder


@dataclass(frozen=True)
class OnGpu:
    """The part of an arena that shows its device."""

    layout: object
    bytes: torch.Tensor


def on_gpu(draft_layers: int = 0) -> EngineParts:
    parts = tiny_parts()
    model = replace(parts.model_config, draft_layers=draft_layers)
    layout = model.cache_layout("float32", "float32", "float32")
    arena = OnGpu(layout, torch.empty(0, device="meta"))
    return replace(parts, arena=arena)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("speculate", "layers", "most"),
    [
        ("prediction", 0, 5),
        ("tree", 0, 5),
        ("mtp", 1, 5),
        ("auto", 0, 0),
        ("auto", 1, 5),
        ("off", 1, 0),
    ],
)
def test_a_gpu_verifies_what_was_asked_for_by_name_or_its_layer_guesses(
    speculate: str, layers: int, most: int
) -> None:
    config = EngineConfig(speculate=speculate, draft_tokens=5)
    assert most_drafts(config, on_gpu(draft_layers=layers)) == most
    if speculate != "mtp":
        assert most_drafts(config, tiny_parts()) == (0 if speculate == "off" else 5)


def test_ranks_of_a_gpu_draft_nothing_that_was_not_asked_for() -> None:
    config = EngineConfig(speculate="auto", tensor_parallel=2)
    assert most_drafts(config, on_gpu(draft_layers=1)) == 0


def test_what_a_gpu_cannot_verify_is_refused_by_name() -> None:
    config = EngineConfig(speculate="tree", draft_tokens=8)
    with pytest.raises(EngineConfigError, match="at most 7 at a time"):
        most_drafts(config, on_gpu())
    config = EngineConfig(speculate="tree")
    with pytest.raises(EngineConfigError, match="verifies no drafts"):
        most_drafts(config, replace(tiny_parts(), runner=lambda parts, hands_on: None))


@pytest.mark.parametrize(
    ("speculate", "of_gpu", "of_cpu"), [("auto", False, True), ("mtp", True, True)]
)
def test_what_a_grammar_forces_a_gpu_drafts_where_drafts_were_asked_for(
    speculate: str, of_gpu: bool, of_cpu: bool
) -> None:
    grammar = Grammar(GrammarKind.REGEX, "abc")
    asked = submit("r", [1, 2, 3], 4, sampling=SamplingParams(max_new_tokens=4, grammar=grammar))
    config, there = EngineConfig(speculate=speculate, draft_tokens=5), on_gpu(draft_layers=1)
    here = replace(tiny_parts(), arena=OnGpu(there.layout, torch.empty(0)))  # type: ignore[arg-type]
    for parts, drafts in ((there, of_gpu), (here, of_cpu)):
        drafting = build_speculation(config, parts).drafting(asked)
        assert (drafting is not None and DraftSource.GRAMMAR in drafting.counts) is drafts


def test_their_room_is_planned() -> None:
    model = published_or_folder("9b")

    def beside(shape: DeltaNetConfig = model, role: Role = Role.FUSED, **changes: object) -> int:
        config = EngineConfig(arena_mib=4096, max_batch=64, **changes)  # type: ignore[arg-type]
        return MemoryPlan.of(shape, config, 140_000 * MIB, role).beside

    plain, drafted = beside(speculate="off"), beside(speculate="tree", draft_tokens=3)
    kept = 2 * 64 * 4 * kept_bytes(model, 24, 2)
    logits = 64 * 4 * model.vocab * 2
    assert kept + logits < drafted - plain < 2 * (kept + logits) + 700 * MIB
    assert beside(speculate="auto") == plain
    layered = replace(model, draft_layers=1)
    assert beside(layered, speculate="auto") == beside(layered, speculate="mtp") > drafted
    apart = {"role": Role.PREFILL}
    assert beside(**apart, speculate="tree") == beside(**apart, speculate="off")
    one = KeptInputs.empty(model, 24, 1, 4, torch.bfloat16, torch.device("meta"))
    assert 4 * kept_bytes(model, 24, 2) == one.raw.nbytes + one.mixed.nbytes + one.scalars.nbytes


def test_spans_take_no_drafts() -> None:
    spans = EngineConfig(device="cuda", attention_split="spans", speculate="prediction")
    with pytest.raises(EngineConfigError, match="give --speculate off, or --attention-split"):
        most_drafts(spans, on_gpu())
    assert most_drafts(replace(spans, speculate="off"), on_gpu()) == 0
