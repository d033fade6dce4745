"""Every kernel compiles for Hopper and Blackwell without a GPU and takes no more than recorded."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.compile_kernels.resources import KernelSpecError, compile_spec, growth
from tasuki.utils.triton.kernel_spec import KernelSpec

ROOT = Path(__file__).parents[2]


_NAMES = """
from scripts.compile_kernels.resources import find_specs
for spec in find_specs():
    print(spec.name, spec.kernel.__name__, spec.kernel.__module__)
"""


def printed(*arguments: str) -> str:
    """Return the output of a separate process: in this one `@triton.jit` may have made interpreted
    functions."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    python = [sys.executable, *arguments]
    done = subprocess.run(python, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1800)  # many compilations, slow on a busy machine
def test_kernels_compile_within_the_recorded_resources() -> None:
    assert "within the recorded numbers" in printed("-m", "scripts.compile_kernels", "--check")


def test_specs_of_every_folder_are_found_and_a_profile_shows_which_is_which() -> None:
    lines = [line.split() for line in printed("-c", _NAMES).splitlines()]
    assert {name for name, *_ in lines} >= {"gdn_decode", "attention_decode", "digest_sum"}
    kernels = Counter(kernel for kernel, _ in {(kernel, module) for _, kernel, module in lines})
    assert [name for name, count in kernels.items() if count > 1] == []


@pytest.mark.parametrize(
    ("signature", "constants", "message"),
    [
        ({"x": "*bf16"}, {"BLOCK": 64}, "step: count is in neither"),
        ({"x": "*bf16", "count": "i32", "y": "i32"}, {"BLOCK": 64}, "step: y is no argument"),
        ({"x": "*bf16", "count": "i32", "BLOCK": "i32"}, {"BLOCK": 1}, "step: BLOCK is in both"),
    ],
)
def test_a_spec_that_does_not_describe_its_arguments_is_refused(
    signature: dict[str, str], constants: dict[str, object], message: str
) -> None:
    kernel = SimpleNamespace(arg_names=["x", "count", "BLOCK"])
    with pytest.raises(KernelSpecError, match=message):
        compile_spec(KernelSpec("step", kernel, signature, constants), 90)


def test_an_integer_that_would_be_compiled_for_is_refused() -> None:
    params = [
        SimpleNamespace(name=name, do_not_specialize=name == "tokens")
        for name in ("tokens", "pages")
    ]
    kernel = SimpleNamespace(arg_names=["tokens", "pages"], params=params)
    spec = KernelSpec("step", kernel, {"tokens": "i32", "pages": "i32"})
    with pytest.raises(KernelSpecError, match="step: pages may be any integer"):
        compile_spec(spec, 90)


def test_growth_names_the_kernel_the_architecture_and_both_numbers() -> None:
    recorded = {"step": {"sm_90": {"registers": 64, "spilled_bytes": 0}}}
    assert growth(recorded, recorded) == []
    fewer = {"step": {"sm_90": {"registers": 60, "spilled_bytes": 0}}}
    assert growth(recorded, fewer) == []
    spills = {"step": {"sm_90": {"registers": 64, "spilled_bytes": 8}}}
    assert growth(recorded, spills) == ["step sm_90: spilled_bytes 0 -> 8"]


def test_growth_finds_kernels_that_are_not_recorded_and_records_without_kernel() -> None:
    one = {"step": {"sm_90": {"registers": 64}}}
    assert growth({}, one) == ["step: not recorded"]
    assert growth(one, {}) == ["step: recorded but gone"]
    both = {"step": {"sm_90": {"registers": 64}, "sm_100": {"registers": 64}}}
    assert growth(one, both) == ["step sm_100: registers not recorded"]
