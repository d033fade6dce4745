"""Answers of engines with FP8 rows in steps. The tokens are the same when a prompt is cut, cached,
drafted or handed over, and nodes that round otherwise do not pair."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tasuki.engine.assembly.parts import EngineParts, build_parts, torch_device
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.model.families.qwen3_5.family import Qwen35Family
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.pycache.arena import Arena
from tasuki.transfer.protocol.contract import Contract, ContractMismatch, diff
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, engine_config, submit
from tests.harness.goldens import cases_of, reference_dir

MODEL = "small-dense"
CASES = ("chunk1", "turn2")
NEW_TOKENS = 12


@pytest.fixture(scope="module")
def fp8(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "fp8"
    quantise_folder(reference_dir(MODEL), folder, RECIPES["fp8"])
    return folder


class Node:
    """Parts of one checkpoint, and engines over arenas of their own."""

    def __init__(self, folder: Path, step_activations: str) -> None:
        self.config = engine_config(folder, step_activations=step_activations)
        self.parts = build_parts(self.config)

    def fresh_parts(self) -> EngineParts:
        return replace(self.parts, arena=Arena(self.parts.layout, self.parts.arena.slabs))

    def engine(self, **changes: object) -> Lone:
        return Lone(replace(self.config, **changes), parts=self.fresh_parts())  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def node(fp8: Path) -> Node:
    return Node(fp8, "fp8")


@pytest.fixture(scope="module")
def whole(node: Node) -> Iterator[dict[str, list[int]]]:
    """Return the answers with each prompt in one chunk."""
    lone = node.engine(prefill_chunk_tokens=4096)
    yield {name: lone.ask(name, prompt_of(name), NEW_TOKENS) for name in CASES}


def prompt_of(name: str) -> list[int]:
    return list(cases_of(MODEL)[name].prompt)


@pytest.mark.parametrize("chunk", [64, 128])
def test_chunks_and_batches_change_no_token(
    node: Node, whole: dict[str, list[int]], chunk: int
) -> None:
    lone = node.engine(prefill_chunk_tokens=chunk)
    for name in CASES:
        lone.post(submit(name, prompt_of(name), NEW_TOKENS))
    lone.run()
    assert {name: lone.tokens(name) for name in CASES} == whole


def test_a_hit_changes_no_token(node: Node, whole: dict[str, list[int]]) -> None:
    lone = node.engine()
    lone.ask("first", prompt_of("turn2")[:65], 1)
    assert lone.ask("resumed", prompt_of("turn2"), NEW_TOKENS) == whole["turn2"]
    assert lone.hit("resumed").usable_tokens == 65


def test_drafts_change_no_token(node: Node, whole: dict[str, list[int]]) -> None:
    drafting = node.engine(speculate="mtp", draft_tokens=3)
    for name in CASES:
        assert drafting.ask(name, prompt_of(name), NEW_TOKENS) == whole[name]
        assert drafting.finished(name).usage.drafted_tokens


def test_a_hand_over_changes_no_token(node: Node, whole: dict[str, list[int]]) -> None:
    with engine_pair(node.fresh_parts(), node.fresh_parts()) as pair:
        pair.join(pair.begin(submit("r", prompt_of("turn2"), NEW_TOKENS)))
        assert pair.decode.tokens("r") == whole["turn2"]


def test_the_logits_are_those_of_fp8_rows(fp8: Path, node: Node) -> None:
    """Both nodes have the same weights; activations alone differ."""
    plain = Node(fp8, "auto")
    assert plain.parts.model.weights.formats == node.parts.model.weights.formats
    keys = []
    for each in (plain, node):
        lone = each.engine()
        lone.ask("r", prompt_of("turn2")[:65], 1)
        keys.append(lone.parts.arena.views("kv")[0].clone())
    assert not torch.equal(*keys)


def test_nodes_that_round_otherwise_are_told_apart(node: Node) -> None:
    ours = Contract("w", node.parts.layout, step_activations="fp8").flat()
    theirs = Contract("w", node.parts.layout).flat()
    (difference,) = diff(ours, theirs)
    assert (difference.field, difference.ours, difference.theirs) == (
        "step_activations",
        "fp8",
        "bf16",
    )
    assert "the same --step-activations, fp8 or bf16" in str(ContractMismatch((difference,)))


def test_a_family_without_fp8_rows_is_refused(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qwen35Family, "takes_fp8_steps", False)
    with pytest.raises(EngineConfigError, match=r"family Qwen3.5 .* leave --step-activations out"):
        build_parts(node.config)


def test_a_gpu_without_fp8_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "an A100")
    monkeypatch.setattr("tasuki.engine.assembly.parts.multiplies_fp8", lambda _: False)
    config = EngineConfig(model="x", device="cuda", step_activations="fp8")
    with pytest.raises(EngineConfigError, match=r"step_activations is fp8.*--step-activations"):
        torch_device(config)
