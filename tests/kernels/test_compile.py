"""Every kernel compiles for Hopper and Blackwell without a GPU and takes no more than recorded."""

import os
import subprocess
import sys
from pathlib import Path

from scripts.compile_kernels.growth import growth

ROOT = Path(__file__).parents[2]


def test_kernels_compile_within_the_recorded_resources() -> None:
    # A process of its own: here `@triton.jit` may have made interpreted functions.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    check = subprocess.run(
        [sys.executable, "-m", "scripts.compile_kernels", "--check"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert check.returncode == 0, check.stdout + check.stderr
    assert "within the recorded numbers" in check.stdout


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
