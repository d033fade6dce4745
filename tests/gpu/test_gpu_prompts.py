"""Prompts' kernels for a Hopper GPU alone: scans by warps with parts of their own have the bits of
other GPUs' scans, and the library's product is the same beside a tail."""

import pytest
import torch

from tasuki.model.weights.matrix import Matrix, Plain
from tests.gpu.test_gpu_fp8_rows import rows_of_all_sizes, weight_of
from tests.kernels.gdn import Heads as GdnHeads
from tests.kernels.gdn import gdn_case

# Where no GPU is, tests of kernels must be the first to import Triton. So each test imports it.
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def on_hopper() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("these kernels are Hopper's")


def test_scans_have_the_bits_of_other_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from tasuki.model.ops.gdn import scan
    from tasuki.model.ops.gdn.prefill import gdn_prefill
    from tasuki.model.ops.gdn.prefill_plan import plan_gdn_prefill

    saves = [(0, 64, 4), (0, 130, 5), (0, 700, 6), (1, 1, 7), (2, 65, 2)]
    found = []
    for usable in (True, False):
        case = gdn_case(GdnHeads(2, 4, 128, 128), 10, torch.bfloat16, torch.float32, GPU)
        case.fill([0, 1, 2])
        projected = case.projected(700 + 1 + 65)
        plan = plan_gdn_prefill([700, 1, 65], [0, 1, 2], saves, [0, 0, 0], torch.float32, GPU)
        if not usable:
            monkeypatch.setattr(scan, "has_partitions", lambda *inputs: False)
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
