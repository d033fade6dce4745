"""The memory plan counts an engine's allocations, and `serve --dry-run` prints it."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasuki.cli import main as cli
from tasuki.engine.assembly.memory_plan import MIB, MemoryPlan, arena_slabs, weights_of
from tasuki.engine.assembly.towers import PROCESSOR_FILES, TowerMemory
from tasuki.engine.config import EngineConfig, Role
from tasuki.engine.runner.rows import MOST_ROWS
from tasuki.model.config import DeltaNetConfig, DenseShape, MoeShape
from tasuki.model.config_json import ModelConfigError
from tasuki.model.costs import ShapesOnly, WeightSizes
from tasuki.model.families.qwen3_5.costs import weight_sizes
from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.families.qwen3_5.published import PUBLISHED
from tasuki.model.families.qwen3_5.weights import ModelWeights, assemble, random_weights
from tasuki.model.ops.attention.long_context import gathered_bytes
from tasuki.model.ops.attention.spans.rule import SPANS
from tasuki.model.ops.attention.tile_groups import turned_bytes
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.model.quantise.format_names import SERVED_ON_GPUS
from tasuki.model.quantise.source import QuantisedSource
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.weights import load_tower_weights
from tasuki.model.weights.kernel_layout import for_kernels
from tasuki.model.weights.layers import matrices, tensors
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.shard import Shard
from tasuki.model.weights.source import RandomSource, ShardedSource
from tasuki.server.daemon.serve_config import GPUS
from tests.harness.engines import TINY, tiny_parts
from tests.harness.goldens import BESIDE, QUANTISED, reference_dir
from tests.harness.model_shapes import MOE, dense_raw
from tests.harness.qwen35 import config_of, load_config, published_or_folder

H200 = GPUS["h200"] * MIB
NINE, MOST = published_or_folder("9b"), published_or_folder("35b-a3b")


def sizes_of(config: DeltaNetConfig, dtype: torch.dtype) -> WeightSizes:
    return weight_sizes(config, assemble(config, ShapesOnly(), dtype, "meta"))


def plan(
    shape: DeltaNetConfig = NINE, device: int = H200, role: Role = Role.FUSED, **changes: object
) -> MemoryPlan:
    config = EngineConfig(**({"arena_mib": 64 * 1024, "max_batch": 64} | changes))  # type: ignore[arg-type]
    return MemoryPlan.of(shape, config, device, role)


def allocated(weights: ModelWeights) -> int:
    return sum({tensor.data_ptr(): tensor.nbytes for tensor in tensors(weights)}.values())


@pytest.mark.parametrize("draft_layers", [0, 1])
@pytest.mark.parametrize("shape", [config_of(TINY), MOE], ids=["tied", "moe"])
def test_weights_are_counted_as_they_are_allocated(
    shape: DeltaNetConfig, draft_layers: int
) -> None:
    shape = replace(shape, draft_layers=draft_layers)
    weights = random_weights(shape, 1, torch.bfloat16)
    assert sizes_of(shape, torch.bfloat16).total == allocated(weights)


def test_partial_results_of_spans_are_counted() -> None:
    config = EngineConfig(arena_mib=64 * 1024, max_batch=64, device="cuda", speculate="prediction")
    shares, spans = (
        MemoryPlan.of(NINE, replace(config, attention_split=split), H200, Role.FUSED)
        for split in ("auto", "spans")
    )
    a_row = 4 * SPANS.most_spans * NINE.query_heads * NINE.head_dim
    assert spans.workspace - shares.workspace == 64 * a_row
    drafted = config.drafts_on_gpu + 1
    assert spans.graphs - shares.graphs == min(64, MOST_ROWS) * drafted * a_row


def test_drafts_and_guesses_have_room_of_their_own_where_answers_are_drawn() -> None:
    model = replace(NINE, draft_layers=1)
    graphs = [plan(model, speculate=name).graphs for name in ("off", "prediction", "mtp")]
    assert graphs == sorted(set(graphs))
    assert plan(model, speculate="auto").graphs == graphs[2]
    assert plan(NINE, speculate="auto").graphs == plan(NINE, speculate="off").graphs
    # Its logits, twice, for 64 rows, and a hidden state for each row.
    assert graphs[2] - graphs[1] > 64 * 2 * (2 * NINE.vocab + NINE.hidden)
    assert plan(model, role=Role.PREFILL, speculate="mtp") == plan(model, role=Role.PREFILL)


@pytest.mark.parametrize(
    ("name", "gigabytes", "active"),
    [("4b", 8.4, 8.4), ("9b", 17.9, 15.9), ("35b-a3b", 69.3, 5.9), ("397b-a17b", 793, 32.6)],
)
def test_published_weights_have_their_published_bytes(
    name: str, gigabytes: float, active: float
) -> None:
    sizes = sizes_of(published_or_folder(name), torch.bfloat16)
    assert sizes.total / 1e9 == pytest.approx(gigabytes, rel=0.01)
    assert sizes.step_bytes(1) / 1e9 == pytest.approx(active, rel=0.01)
    assert sizes.step_bytes(1) <= sizes.step_bytes(64) <= sizes.total


@pytest.mark.parametrize(
    ("name", "entries", "guesses"), [("9b", 84e6, 402e6), ("35b-a3b", 21e6, 1.67e9)]
)
def test_a_step_that_drafts_nothing_reads_little_of_a_draft_layer(
    name: str, entries: float, guesses: float
) -> None:
    """Such a step reads fc and two rows of heads. Queries, feed-forward and the rest are only for
    guesses."""
    off, on = (
        sizes_of(replace(published_or_folder(name), draft_layers=layers), torch.bfloat16)
        for layers in (0, 1)
    )
    assert on.step_bytes(1) - off.step_bytes(1) == pytest.approx(entries, rel=0.01)
    assert on.total - off.total == pytest.approx(entries + guesses, rel=0.01)


def test_the_arena_is_counted_as_it_is_allocated() -> None:
    arena = tiny_parts(arena_mib=4).arena
    config = EngineConfig(arena_mib=4, dtype="float32")
    counted = MemoryPlan.of(config_of(TINY), config, H200, Role.FUSED)
    assert counted.arena == arena.bytes.nbytes
    assert counted.slabs(counted.arena) == arena.slabs


def test_everything_together_stays_within_the_gpu() -> None:
    full = plan()
    assert 0.95 * H200 < full.beside + full.fitting_arena <= H200
    assert full.fits
    assert not plan(MOST, device=80_000 * MIB).fits
    assert plan(published_or_folder("397b-a17b")).fitting_arena == 0


def test_a_tower_is_counted_by_name_where_it_is_used() -> None:
    seen, blind = plan(model="9b"), plan(model="9b", vision="off")
    tower = seen.tower
    assert tower.weights / 1e9 == pytest.approx(0.9, rel=0.05)
    assert tower.rows == 512 * MIB
    # 16 KiB a patch, and what does not grow with the picture.
    assert tower.workspace > 4_000_000 // 256 * 16 * 1024
    assert blind.tower == TowerMemory() and not blind.tower.total
    assert seen.beside - blind.beside == tower.total
    lost = blind.fitting_arena - seen.fitting_arena
    assert abs(lost - tower.total * 0.98) <= 2 * seen.layout.slab_bytes
    assert plan(model="9b", picture_rows_mib=1024).tower.rows == 1024 * MIB
    for role in (Role.PREFILL, Role.DECODE):
        assert plan(model="9b", role=role).tower == tower
    for other in (
        plan(model="9b", role=Role.DECODE, vision="off"),
        plan(model=""),
    ):
        assert other.tower == TowerMemory()


def test_the_dry_run_names_a_tower(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["serve", "--dry-run", "--gpu", "h200", "--model", "9b"]
    names = ("vision tower", "rows of pictures", "workspace of a picture")
    assert cli.main(flags) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in names)
    assert cli.main([*flags, "--vision", "off"]) == 0
    assert not any(name in capsys.readouterr().out for name in names)


def test_a_folder_is_counted_by_its_own_tower(tmp_path: Path) -> None:
    folder = BESIDE / "vision-dense"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    tower = TowerMemory.of(EngineConfig(model=str(folder), dtype="float32"))
    config = VisionConfig.load(folder)
    assert config is not None
    assert tower.weights == load_tower_weights(folder, config, torch.float32).nbytes
    for file in folder.iterdir():
        if file.is_file() and file.name not in PROCESSOR_FILES:
            (tmp_path / file.name).symlink_to(file)
    blind = EngineConfig(model=str(tmp_path), dtype="float32")
    assert TowerMemory.of(blind) == TowerMemory()


def test_longer_chunks_and_more_requests_leave_less_for_the_arena() -> None:
    assert plan(prefill_chunk_tokens=8192).fitting_arena < plan().fitting_arena
    assert plan(max_batch=256).fitting_arena < plan(max_batch=1).fitting_arena


@pytest.mark.parametrize(
    ("arena_mib", "tokens"),
    # An arena of 100 slabs of 24 pages holds shorter contexts than the model knows.
    [(64 * 1024, 262_144), (4925, 100 * 24 * 64), (300, 6 * 24 * 64)],
)
def test_what_is_gathered_is_counted_for_the_longest_context_that_the_arena_holds(
    arena_mib: int, tokens: int
) -> None:
    counted = plan(arena_mib=arena_mib)
    assert counted.context_tokens == tokens
    assert counted.gathered == gathered_bytes(NINE, tokens, torch.bfloat16)


def test_fp8_rows_have_room_to_be_turned_in_for_prompts_of_short_contexts_too() -> None:
    for arena_mib in (64 * 1024, 300):
        rows = plan(arena_mib=arena_mib, kv_dtype="fp8")
        turned = turned_bytes(NINE, rows.context_tokens, torch.bfloat16)
        assert rows.gathered == turned >= 2**28
        assert plan(arena_mib=arena_mib, kv_dtype="fp8", dtype="float32").gathered == 0


def test_what_is_computed_behind_a_load_has_a_workspace_of_its_own() -> None:
    more = {}
    for tokens in (2048, 8192):
        alone = plan(prefill_chunk_tokens=tokens)
        below = plan(prefill_chunk_tokens=tokens, host_cache_gib=64.0)
        assert below.gathered == 2 * alone.gathered
        assert below.fitting_arena < alone.fitting_arena
        more[tokens] = below.workspace - alone.workspace
    assert more[8192] == 4 * more[2048] > 0
    # A decode node loads too, for prompts it answers by itself.
    ours, without = (plan(host_cache_gib=gib, role=Role.DECODE) for gib in (64.0, None))
    assert ours.gathered == 2 * without.gathered and ours.workspace > without.workspace


def test_a_longer_context_takes_a_longer_table_and_no_more_to_gather() -> None:
    long = plan(replace(NINE, max_position=1_010_000))
    assert long.context_tokens == 1_010_000
    assert long.rotary == 1_010_000 * 256
    assert long.gathered == plan().gathered == 2**30
    assert plan(dtype="float32").gathered == 0


def test_requests_that_run_at_a_time_fill_the_slabs() -> None:
    full = plan()
    running = full.requests(full.arena, 50_000)
    pages_of_one = 782 + 2 * full.layout.pages_per_slab
    assert running * pages_of_one <= full.pages(full.arena) < (running + 1) * pages_of_one
    one_slot = replace(full, working_slots=1)
    assert one_slot.requests(full.arena, 64) > full.requests(full.arena, 64)


@pytest.mark.parametrize(
    ("draft_layer", "figures"),
    [("auto", ("17543 MiB", "21 pages")), ("off", ("17079 MiB", "24 pages"))],
)
def test_the_dry_run_prints_the_plan_and_loads_nothing(
    draft_layer: str, figures: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--model", "9b", "--gpu", "h200", "--draft-layer", draft_layer]
    assert cli.main(["serve", "--dry-run", *flags]) == 0
    printed = capsys.readouterr().out
    words = ("weights", "arena", "slots", "pages", "graphs", "workspace", "rotary", "gathered")
    for word in (*words, *figures, "the plan fits"):
        assert word in printed


def test_the_dry_run_says_what_would_fit(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["serve", "--dry-run", "--model", "35b-a3b", "--gpu", "98304"]
    assert cli.main([*flags, "--arena-mib", "60000"]) == 0
    fitting = capsys.readouterr().out.split("--arena-mib ")[1].split()[0]
    assert cli.main([*flags, "--arena-mib", fitting]) == 0
    assert "the plan fits" in capsys.readouterr().out


@pytest.mark.parametrize("form", [[], ["--quantization", "fp8"]], ids=["plain", "fp8"])
def test_the_dry_run_of_several_ranks_is_of_one_ranks_part(
    form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["serve", "--dry-run", "--model", "4b", "--gpu", "h200"]
    weights = []
    for more in ([], ["--tensor-parallel", "2"]):
        assert cli.main([*flags, *form, *more]) == 0
        printed = capsys.readouterr().out
        weights.append(int(printed.split("weights")[1].split()[0]))
        assert ("ranks" in printed) == bool(more)
    # The embedding, 1.2 GiB, each rank has as a whole.
    assert weights[0] < 2 * weights[1] < weights[0] + 1280


def test_no_plan_is_made_for_what_a_gpu_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = dense_raw() | {"quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["serve", "--dry-run", "--model", str(tmp_path), "--gpu", "h200"]) == 1
    assert "is quantised (fp8) and holds no weights" in capsys.readouterr().err
    codes = torch.zeros(1, dtype=torch.int8)
    stored = {"model.embed_tokens.weight": torch.zeros(1), "model.layers.0.up_proj.weight": codes}
    save_file(stored, tmp_path / "model.safetensors")
    assert cli.main(["serve", "--dry-run", "--model", str(tmp_path), "--gpu", "h200"]) == 1
    assert "no kernels for that" in capsys.readouterr().err


assert isinstance(MOE.feed_forward, MoeShape)
WHOLE_GROUPS = replace(
    MOE, feed_forward=replace(MOE.feed_forward, intermediate=32, shared_intermediate=48)
)
"""A shape with groups of 16 columns, as NVFP4 needs."""


@pytest.mark.parametrize("form", SERVED_ON_GPUS)
@pytest.mark.parametrize("shape", [config_of(TINY), WHOLE_GROUPS], ids=["tied", "moe"])
def test_quantised_weights_are_counted_as_they_are_allocated(
    shape: DeltaNetConfig, form: str
) -> None:
    source = QuantisedSource(RandomSource(1), RECIPES[form])
    weights = assemble(shape, source, torch.bfloat16)
    counted = weights_of(shape, EngineConfig(dtype="bfloat16"), form).total
    assert counted == on_a_gpu(weights) - (weights.head.nbytes if shape.tied else 0)
    # NVFP4 fills rows up to blocks of 128 columns, more than such tiny matrices have.
    if form.startswith("fp8"):
        assert counted < sizes_of(shape, torch.bfloat16).total


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's bytes, because e4m3 has no equality."""
    return tensor.contiguous().view(torch.uint8)


def on_a_gpu(weights: ModelWeights) -> int:
    """Return the bytes of all weights laid out for kernels. A tied one counts as often as it is
    named."""
    laid_out = [s for matrix in matrices(weights) for s in for_kernels(matrix.segments)]
    beside = sum(t.nbytes for t in tensors(weights)) - sum(m.nbytes for m in matrices(weights))
    return beside + sum(segment.nbytes for segment in laid_out)


def test_a_quantised_folder_is_counted_by_its_headers(tmp_path: Path) -> None:
    folder = tmp_path / "fp8"
    quantise_folder(reference_dir("small-moe"), folder, RECIPES["fp8"])
    model = load_config(folder)
    config = EngineConfig(model=str(folder), dtype="bfloat16")
    with Checkpoint(folder) as stored:
        counted = on_a_gpu(assemble(model, stored, torch.bfloat16))
    assert weights_of(model, config).total == counted
    assert MemoryPlan.of(model, config, H200, Role.FUSED).weights == counted


@pytest.mark.parametrize("name", [name for name in QUANTISED if name == "tp4-dense-fp8"])
def test_a_rank_of_a_quantised_folder_is_counted_by_what_it_reads(name: str) -> None:
    folder, shard = reference_dir(name), Shard(1, 2)
    model = load_config(folder)
    cuts = Qwen35Cuts(model)
    part, share = cuts.part(shard), partial(ShardedSource, cuts=cuts, shard=shard)
    with Checkpoint(folder) as stored:
        counted = on_a_gpu(assemble(part, share(stored), torch.bfloat16))
    config = EngineConfig(model=str(folder), dtype="bfloat16", device="cuda", tensor_parallel=2)
    assert weights_of(part, config, share=share).total == counted
    assert arena_slabs(config, part, Role.FUSED, H200, share) > 0


@pytest.mark.skipif(not (BESIDE / "tp4-dense").is_dir(), reason="no checkpoint whose heads divide")
@pytest.mark.parametrize("form", SERVED_ON_GPUS)
def test_a_rank_of_a_format_has_what_it_reads_of_a_folder(form: str, tmp_path: Path) -> None:
    plain, folder, shard = reference_dir("tp4-dense"), tmp_path / form, Shard(1, 2)
    quantise_folder(plain, folder, RECIPES[form])
    model = load_config(plain)
    cuts = Qwen35Cuts(model)
    part, share = cuts.part(shard), partial(ShardedSource, cuts=cuts, shard=shard)
    with Checkpoint(plain) as whole, Checkpoint(folder) as stored:
        made = assemble(part, share(QuantisedSource(whole, RECIPES[form])), torch.bfloat16)
        read = assemble(part, share(stored), torch.bfloat16)
        pairs = [*zip(tensors(made), tensors(read), strict=True)]
        assert all(torch.equal(bytes_of(one), bytes_of(other)) for one, other in pairs)
        assert weights_of(part, EngineConfig(dtype="bfloat16"), form, share).total == on_a_gpu(read)


def test_the_dry_run_counts_a_format(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["serve", "--dry-run", "--gpu", "h200", "--quantization", "fp8", "--model"]
    for draft_layer, weights in (("off", "117990 MiB"), ("auto", "120416 MiB")):
        assert cli.main([*flags, "122b-a10b", "--draft-layer", draft_layer]) == 0
        printed = capsys.readouterr().out
        assert weights in printed and "the plan fits" in printed
    assert cli.main([*flags, str(reference_dir("small-moe"))]) == 1
    assert "give a published name" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["serve", "--model", "9b", "--quantization", "fp8"])
    assert "tasuki quantise" in capsys.readouterr().err


def test_the_dry_run_says_what_fits_with_fp8_keys_and_values(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = ["serve", "--dry-run", "--gpu", "h200", "--quantization", "fp8", "--model"]
    found = []
    for kv_dtype in ("bf16", "fp8"):
        assert cli.main([*flags, "122b-a10b", "--kv-dtype", kv_dtype]) == 0
        printed = capsys.readouterr().out
        assert "the plan fits" in printed
        said = re.search(r"arena auto.* (\d+) pages;.* (\d+) requests of 50000", printed)
        assert said is not None
        pages, requests = said.groups()
        found.append((int(pages), int(requests)))
    assert found[1][0] >= 1.9 * found[0][0]
    assert found[0][1] >= 4 and found[1][1] > found[0][1]
    documented = Path(__file__).parents[2].joinpath("docs/quantisation.md").read_text()
    (fewer, fewer_requests), (more, more_requests) = found
    assert f"{more:,} pages" in documented and f"{more_requests} requests" in documented
    assert f"pages are {fewer:,} and {fewer_requests}" in documented


def test_the_dry_run_plans_for_each_gpu_where_none_is_here(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert cli.main(["serve", "--dry-run", "--model", "122b-a10b", "--quantization", "fp8"]) == 0
    printed = capsys.readouterr().out
    of_each = printed.split("\n\n")[1:]
    assert [text.partition("\n")[0] for text in of_each] == list(GPUS)
    fits = ["the plan fits" in text for text in of_each]
    assert fits == [False, True, True]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "--model"),
        (["--model", "12b", "--gpu", "h200"], next(iter(PUBLISHED))),
        (["--model", "9b", "--gpu", "h2000"], "h200"),
        (["--model", "9b", "--gpu", "h200", "--revision", "v1"], "revision v1"),
        (["--model", str(BESIDE), "--gpu", "h200", "--revision", "v1"], "revision v1"),
        (["--model", "27b", "--gpu", "h200", "--tensor-parallel", "3"], "one of 1, 2, 4, 8"),
    ],
)
def test_the_dry_run_names_what_to_mend(
    flags: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["serve", "--dry-run", *flags]) == 1
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "block"),
    [
        # Linear attention: q, k and v before and after the convolution, six times the values.
        (NINE, 2 * (2 * 16 * 128 + 32 * 128) + 6 * (32 * 128)),
        # Attention: five times the queries, keys and values.
        (replace(NINE, query_heads=64), 5 * (64 * 256) + 2 * (4 * 256)),
        # A dense feed-forward: gate, up and their product.
        (replace(NINE, feed_forward=DenseShape(20_000)), 3 * 20_000),
        # Experts: for each of eight chosen the same, with its input and output, and the shared one.
        (MOST, 8 * (3 * 512 + 2 * 2048) + 3 * 512),
    ],
    ids=["linear", "attention", "dense", "experts"],
)
def test_the_plan_is_what_the_widest_block_comes_to_by_hand(
    model: DeltaNetConfig, block: int
) -> None:
    config = EngineConfig(arena_mib=64 * 1024, max_batch=48, prefill_chunk_tokens=4096)
    counted = MemoryPlan.of(model, config, H200, Role.FUSED)
    # The residual stream, its norm and their sum beside the block, in bfloat16.
    of_a_token = 2 * (3 * model.hidden + block)
    # The logits of sampled rows, and of 32 rows of a scored prompt.
    logits = 4 * (48 * 248_320) * 4 + 32 * 248_320 * 32
    assert counted.workspace == 4096 * of_a_token + logits
    # The logits of graphs with 1, 2, 4, 8, 12, 16, 24, 32, 40 and 48 rows stay in place.
    assert counted.graphs == 512 * MIB + 48 * of_a_token + 187 * 248_320 * 2
    assert counted.context == 1280 * MIB
    # 64 elements of a head turn; keys and values of 262,144 tokens, in bfloat16.
    assert counted.rotary == 262_144 * 64 * 4
    assert counted.gathered == 2 * 262_144 * model.kv_heads * 256 * 2
    beside = (counted.weights, counted.rotary, counted.workspace, counted.gathered, counted.graphs)
    assert counted.beside == sum(beside) + counted.context
    rest = H200 - counted.beside
    slab = counted.layout.slab_bytes
    assert counted.fitting_arena == int(rest * 0.98) // slab * slab
    assert counted.arena == 64 * 1024 * MIB // slab * slab


def test_an_arena_that_fills_the_rest_exactly_fits_and_all_its_slabs_may_hold_pages() -> None:
    full = plan()
    exact = replace(full, arena=full.fitting_arena)
    slab = full.layout.slab_bytes
    assert exact.fits and not replace(exact, arena=exact.arena + slab).fits
    assert full.pages(7 * slab) == 7 * full.layout.pages_per_slab
    assert full.layout.pages_per_slab > 1


def test_a_plan_of_a_name_says_that_it_takes_folders() -> None:
    with pytest.raises(ModelConfigError, match=r"a plan downloads nothing.*checkpoint's folder"):
        published_or_folder("owner/name")
