"""Prompts' kernels for a Hopper GPU alone: attention and scans by warps with parts of their own
equal the kernels of other GPUs, and FP8 rows made in a norm's pass equal those made apart."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.matrix import Matrix, Plain
from tests.gpu.shapes import dense_raw
from tests.gpu.test_gpu_fp8_rows import rows_of_all_sizes, weight_of
from tests.harness.qwen35 import config_of
from tests.kernels.gdn import Heads as GdnHeads
from tests.kernels.gdn import gdn_case

# Where no GPU is, tests of kernels must be the first to import Triton. So each test imports it.
GPU = torch.device("cuda")
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256}
RUNS = {
    "cold": [(1, 0), (63, 0), (64, 0), (65, 0), (200, 0), (1000, 0)],
    "cached": [(100, 1), (128, 63), (129, 64), (700, 3000), (64, 127), (1, 128)],
}


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("these kernels are Hopper's")


@dataclass(frozen=True)
class Runs:
    """Random queries, gates and pages of some sequences. Unwritten parts of pages hold NaN."""

    config: DeltaNetConfig
    q: Tensor
    projected: Tensor
    kv: Tensor
    table: Tensor
    runs: list[tuple[int, int]]

    @staticmethod
    def of(runs: list[tuple[int, int]], dtype: torch.dtype) -> "Runs":
        torch.manual_seed(7)
        config = config_of(dense_raw() | HEADS)
        ends = [length + before for length, before in runs]
        pages = [-(-end // 64) for end in ends]
        order = 1 + torch.randperm(sum(pages), device=GPU).int()
        shape = (1 + sum(pages), config.kv_heads, 2, 64, config.head_dim)
        kv = torch.randn(shape, device=GPU).to(dtype)
        kv[0] = torch.nan
        table = torch.zeros(len(runs), -(-max(pages) // 16) * 16, dtype=torch.int32, device=GPU)
        begin = 0
        for row, (end, count) in enumerate(zip(ends, pages, strict=True)):
            table[row, :count] = order[begin : begin + count]
            begin += count
            if end % 64:
                kv[table[row, count - 1].long(), :, :, end % 64 :] = torch.nan
        tokens = sum(length for length, _ in runs)
        q = torch.randn(tokens, config.query_heads, config.head_dim, device=GPU).to(dtype)
        width = 2 * (config.query_heads + config.kv_heads) * config.head_dim
        projected = torch.randn(tokens, width, device=GPU).to(dtype)
        return Runs(config, q, projected, kv, table, runs)

    def attend(self) -> Tensor:
        from tasuki.model.ops.attention.prefill import paged_attention_prefill
        from tasuki.model.ops.attention.prefill_tiles import PrefillTiles

        lengths, contexts = zip(*self.runs, strict=True)
        tiles = PrefillTiles.of(lengths, contexts, self.config, self.q.dtype, GPU)
        assert tiles.splits == 1
        given = (self.q, self.projected, self.config, self.kv, self.table)
        return paged_attention_prefill(*given, tiles)

    def late(self, tokens: int) -> "Runs":
        """Return the same runs without their first `tokens` tokens, which are cached already."""
        kept, runs, begin = [], [], 0
        for length, before in self.runs:
            assert length > tokens
            kept.append(torch.arange(begin + tokens, begin + length, device=GPU))
            runs.append((length - tokens, before + tokens))
            begin += length
        rows = torch.cat(kept)
        return Runs(self.config, self.q[rows], self.projected[rows], self.kv, self.table, runs)


@pytest.mark.parametrize("runs", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_attention_is_as_near_as_on_other_gpus(
    runs: list[tuple[int, int]], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasuki.model.ops.attention import prefill

    case = Runs.of(runs, dtype)
    got = case.attend()
    assert not bool(got.isnan().any())
    # Many launches: warps that wait for each other must not depend on their pace.
    for _ in range(100):
        assert torch.equal(case.attend(), got)
    monkeypatch.setattr(prefill, "has_partitions", lambda q, kv: False)
    want = case.attend().float()
    assert float((got.float() - want).norm() / want.norm()) < 1e-4


def test_a_row_has_the_same_bits_behind_cached_tokens() -> None:
    whole = Runs.of([(300, 0), (500, 100)], torch.bfloat16)
    out = whole.attend()
    for tokens in (1, 64, 100, 255):
        rows = torch.cat([torch.arange(tokens, 300), torch.arange(300 + tokens, 800)])
        assert torch.equal(whole.late(tokens).attend(), out[rows.to(GPU)]), tokens


@pytest.mark.parametrize("state", [torch.float32, torch.bfloat16])
def test_scans_have_the_bits_of_other_gpus(
    state: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasuki.model.ops.gdn import scan
    from tasuki.model.ops.gdn.prefill import gdn_prefill
    from tasuki.model.ops.gdn.prefill_plan import plan_gdn_prefill

    saves = [(0, 64, 4), (0, 130, 5), (0, 700, 6), (1, 1, 7), (2, 65, 2)]
    found = []
    for usable in (True, False):
        case = gdn_case(GdnHeads(2, 4, 128, 128), 10, torch.bfloat16, state, GPU)
        case.fill([0, 1, 2])
        projected = case.projected(700 + 1 + 65)
        plan = plan_gdn_prefill([700, 1, 65], [0, 1, 2], saves, GPU)
        if not usable:
            monkeypatch.setattr(scan, "has_partitions", lambda kq, v: False)
        torch.manual_seed(3)
        output = gdn_prefill(projected, case.weights, case.config, case.conv, case.ssm, plan)
        found.append((output, case.ssm[[2, 4, 5, 6, 7]].clone()))
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_in_proj_is_multiplied_in_place() -> None:
    from tasuki.model.ops.linear.fp8_activations import quantised
    from tasuki.model.ops.linear.fp8_library import block_product, coded_product

    weight, tail = weight_of((12288, 4096)), torch.randn(64, 4096, device=GPU).bfloat16()
    for tokens in (70, 8192):
        x = rows_of_all_sizes(tokens, 4096)
        codes = quantised(x)
        got = coded_product(codes, x, Matrix((weight, Plain(tail))))
        assert torch.equal(got[:, :12288], block_product(codes, weight))
        want = torch.nn.functional.linear(x.float(), tail.float())
        rest = got[:, 12288:].float()
        assert float((rest - want).norm() / want.norm()) < 4e-3


def test_a_gated_norm_is_quantised_in_its_pass() -> None:
    from tasuki.model.ops.gdn.norm import gdn_norm, gdn_norm_codes
    from tasuki.model.ops.gdn.prefill_plan import plan_gdn_prefill
    from tasuki.model.ops.linear.fp8_activations import quantised

    case = gdn_case(GdnHeads(2, 4, 128, 128), 4, torch.bfloat16, torch.float32, GPU)
    plan = plan_gdn_prefill([702, 1], [0, 1], [], GPU)
    outputs = torch.randn(len(plan.chunks), 4, 64, 128, device=GPU).bfloat16()
    given = (case.projected(703), outputs, case.weights.norm, case.config, plan)
    got, want = gdn_norm_codes(*given), quantised(gdn_norm(*given))
    count = want.count
    assert got.count == count == 703
    assert torch.equal(got.values[:count].view(torch.uint8), want.values[:count].view(torch.uint8))
    assert torch.equal(got.scales[:count], want.scales[:count])
