"""Answers of engines with FP8 rows in their pages. The tokens are the same when a prompt is cut,
cached, drafted, handed over, pulled back, shared among ranks or kept below the arena."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts, torch_device
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.tiers.tier import CPU_LINK
from tasuki.pycache.arena import Arena
from tasuki.pycache.parts import FP8_ROWS
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, prompt, submit, tiny_engine, tiny_parts
from tests.harness.fp8_answers import Fp8Answers, config, engine, parts, whole
from tests.harness.goldens import BESIDE, OWN_MODELS, cases_of, reference_dir
from tests.harness.rank_engines import rank_engine
from tests.harness.scripted_drafts import DRAWN, answered, any_pattern, assert_same, draft
from tests.harness.tiers import FaultyDisk, TieredEngine

MODEL = "small-dense"


class TestFp8AnswersOnTheCpu(Fp8Answers):
    device = "cpu"


@pytest.mark.parametrize("model", OWN_MODELS)
def test_pages_are_of_fp8_and_the_draft_layers_too(model: str) -> None:
    layout = parts(model).layout
    assert (layout.page_dtype, layout.columns[0].dtype) == (FP8_ROWS, "float32")
    assert {part.dtype for region in layout.regions for part in region.parts} == {"uint8"}
    full = [cache.kind for cache in layout.layers].count("full_attention")
    assert len(layout.regions) == full + layout.draft_layers


def test_counters_say_how_a_node_stores_what_it_has() -> None:
    lone = engine("small-dense")
    lone.post(m.StatsQuery(1))
    lone.run()
    (reply,) = lone.all_said(m.StatsReply)
    wanted = {"weights": "plain", "kv": FP8_ROWS, "states": "float32", "draft_layers": "1"}
    assert reply.stored == wanted


@pytest.mark.parametrize("most", [1, 4])
def test_drafts_change_nothing(most: int) -> None:
    def tiny() -> Lone:
        return tiny_engine(parts=tiny_parts(kv_dtype=FP8_ROWS))

    plain, drafting, tokens = tiny(), tiny(), prompt(90)
    answer = [token.token for token in answered(plain, tokens, DRAWN)]
    draft(drafting, {"r": answer}, most, any_pattern(most))
    answered(drafting, tokens, DRAWN)
    assert_same(drafting, plain, tokens)
    assert drafting.finished("r").usage.drafted_tokens


def test_the_draft_layer_drafts_and_changes_nothing() -> None:
    case = cases_of(MODEL)["turn2"]
    drafting = engine(MODEL, speculate="mtp", draft_tokens=3, prefill_chunk_tokens=64)
    assert drafting.ask("r", case.prompt, len(case.greedy)) == whole(MODEL)["turn2"]
    assert drafting.finished("r").usage.drafted_tokens
    drafting.assert_at_rest()


@pytest.mark.parametrize("case_name", ["chunk1", "turn2"])
def test_a_hand_over_brings_the_bytes_that_were_stored(case_name: str) -> None:
    case, layout = cases_of(MODEL)[case_name], parts(MODEL).layout

    def node() -> EngineParts:
        return replace(parts(MODEL), arena=Arena(layout, parts(MODEL).arena.slabs))

    with engine_pair(node(), node()) as pair:
        transfer = pair.begin(submit("r", case.prompt, len(case.greedy)))
        sent = pair.flushed(transfer).report
        assert sent.bytes == sent.pages * layout.page_bytes + layout.slot_bytes
        pair.join(transfer)
        assert pair.decode.tokens("r") == whole(MODEL)[case_name]
        for each in (pair.prefill, pair.decode):
            each.assert_at_rest()
        log = [*case.prompt, *whole(MODEL)[case_name], 0]
        blocks = [held_blocks(each, log) for each in (pair.prefill, pair.decode)]
        shared = min(map(len, blocks))
        assert shared and torch.equal(*(found[:shared] for found in blocks))


def held_blocks(lone: Lone, tokens: list[int]) -> torch.Tensor:
    """Return an array [whole pages in the tree, regions, bytes of a block]."""
    allocation = lone.engine._cache.allocate(
        np.asarray(tokens, np.int32), capacity_tokens=len(tokens), working_slots=1
    )
    assert allocation is not None
    pages = allocation.pages[: allocation.cached_tokens // 64].tolist()
    arena = lone.parts.arena
    blocks = torch.stack([kv[pages] for kv in arena.views("kv")], 1).flatten(2).clone()
    lone.engine._cache.release(allocation)
    return blocks


def tiered(**settings: object) -> Iterator[TieredEngine]:
    made = TieredEngine(kv_dtype=FP8_ROWS, **settings)  # type: ignore[arg-type]
    yield made
    made.copies.let_go()
    made.lone.run()
    made.lone.assert_at_rest()
    made.close()


def test_what_comes_back_from_host_memory_and_disk_is_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Reads are made cheap, because so few tokens would otherwise be computed.
    monkeypatch.setattr("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK)
    first = prompt(350, seed=1)
    lone = tiny_engine(parts=tiny_parts(kv_dtype=FP8_ROWS))
    following = first + lone.ask("first", first, 2) + prompt(40, seed=2)
    expected = lone.ask("next", following, 4)
    disk = FaultyDisk(tmp_path, tiny_parts(slabs=2, kv_dtype=FP8_ROWS).layout, 120)
    for settings in ({}, {"host_slabs": 14, "disk": disk.memory()}):
        for made in tiered(slabs=14, **settings):
            made.lone.ask("first", first, 2)
            for seed in range(100, 108):
                made.empty_arena(seed)
            assert made.lone.ask("next", following, 4) == expected
            assert sum(made.lone.hit("next").loaded.values()) == len(first) + 1


@pytest.mark.slow
@pytest.mark.skipif(not (BESIDE / "tp4-dense").is_dir(), reason="no checkpoint whose heads divide")
def test_ranks_answer_as_one() -> None:
    model = "tp4-dense"
    asked = {name: prompt(length, seed=length) for name, length in (("a", 70), ("b", 150))}
    lone = Lone(config(model))
    folder = reference_dir(model)
    with rank_engine(folder, tensor_parallel=2, kv_dtype="fp8") as ranks:
        for each in (lone, ranks):
            for name, tokens in asked.items():
                each.ask(name, tokens, 12)
        assert ranks.parts.layout.block_bytes * 2 == lone.parts.layout.block_bytes
        assert [ranks.tokens(name) for name in asked] == [lone.tokens(name) for name in asked]


def test_bf16_pages_beside_float32_weights_are_of_bf16() -> None:
    made = EngineConfig(model="m", dtype="float32", kv_dtype="bf16")
    assert made.stored_kv == "bfloat16"
    assert EngineConfig(model="m", dtype="float32").stored_kv == "float32"


def test_a_gpu_serves_fp8_rows_beside_any_dtype_and_refuses_other_numbers() -> None:
    for dtype in ("float32", "bfloat16"):
        made = EngineConfig(model="m", device="cuda", dtype=dtype, kv_dtype="fp8")
        assert made.stored_kv == FP8_ROWS
    EngineConfig(model="m", device="cuda", kv_dtype="bf16")
    with pytest.raises(EngineConfigError, match=r"kv_dtype is bf16 .*--kv-dtype fp8.*--device cpu"):
        EngineConfig(model="m", device="cuda", dtype="float32", kv_dtype="bf16")


@pytest.mark.parametrize(
    ("capability", "served"), [((8, 6), False), ((8, 9), True), ((9, 0), True)]
)
def test_a_gpu_without_e4m3_refuses_fp8_rows(
    capability: tuple[int, int], served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A40")
    asked = EngineConfig(model="m", device="cuda", kv_dtype="fp8")
    if served:
        assert torch_device(asked).type == "cuda"
        return
    with pytest.raises(EngineConfigError, match=r"kv_dtype is fp8, and NVIDIA A40 .*8\.9"):
        torch_device(asked)
    assert torch_device(replace(asked, kv_dtype="auto")).type == "cuda"
