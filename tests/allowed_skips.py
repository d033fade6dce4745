"""The tests that may skip in CI, with place and reason: `--only-listed-skips` fails on any other.

Pure values. An entry holds only on its machine: on a machine with a GPU a test for GPUs may not
skip. A test without its tool is not listed: `.ci/install` installs the tool.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from tests.harness.namespaces import why_not

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"


@dataclass(frozen=True)
class Machine:
    """A kind of machine. holds: returns whether this machine is of that kind."""

    name: str
    holds: Callable[[], bool]


@dataclass(frozen=True)
class AllowedSkip:
    """Skips that are allowed. tests, reason: fnmatch patterns of a test's or file's id, and of the
    skip's text."""

    tests: str
    reason: str
    machine: Machine
    why: str

    def matches(self, test: str, reason: str) -> bool:
        return fnmatchcase(test, self.tests) and fnmatchcase(reason, self.reason)


@cache
def gpus() -> int:
    import torch  # seconds, which a run without the option need not wait

    return torch.cuda.device_count()


NO_GPU = Machine("no GPU", lambda: gpus() == 0)
ONE_GPU = Machine("fewer than two GPUs", lambda: gpus() < 2)
A_GPU = Machine("a GPU", lambda: gpus() > 0)
TWO_GPUS = Machine("two GPUs", lambda: gpus() > 1)
NO_RAY = Machine("no Ray", lambda: importlib.util.find_spec("ray") is None)
NO_NAMESPACES = Machine("no network namespaces", lambda: why_not() is not None)
NO_SHARED = Machine("no ../shared", lambda: not SHARED.is_dir())

ALLOWED = (
    AllowedSkip(
        "tests/gpu/test_gpu_*", "PyTorch sees no GPU here", NO_GPU, "whole models on a GPU"
    ),
    AllowedSkip("tests/gpu/test_gpu_ranks.py*", "*", ONE_GPU, "models that two GPUs share"),
    AllowedSkip("tests/gpu/test_peer_copy.py*", "*", ONE_GPU, "copies between two GPUs"),
    AllowedSkip("tests/kernels/*", "*needs a GPU*", NO_GPU, "what Triton's interpreter lacks"),
    AllowedSkip(
        "tests/engine/test_settings.py*", "there is a GPU here", A_GPU, "the refusal without one"
    ),
    AllowedSkip("tests/bench/test_bench.py*", "a GPU is here", A_GPU, "the refusal without one"),
    AllowedSkip("tests/bench/test_bench.py*", "two GPUs are here", TWO_GPUS, "the refusal"),
    AllowedSkip(
        "tests/bench/test_bench_transfer.py*", "two GPUs are here", TWO_GPUS, "the refusal"
    ),
    AllowedSkip(
        "tests/cli/test_ray.py*", "Ray is not installed*", NO_RAY, "an environment of its own"
    ),
    AllowedSkip("tests/faults/test_hosts.py*", "*network namespaces*", NO_NAMESPACES, "needs root"),
    AllowedSkip(
        "tests/bench/test_replay_agreement.py*",
        "*shared*is not there",
        NO_SHARED,
        "a published simulator and traces beside the repository",
    ),
    AllowedSkip(
        "tests/model/test_vision_*",
        "*shared*is not there",
        NO_SHARED,
        "checkpoints with a vision tower beside the repository",
    ),
    AllowedSkip(
        "tests/families/test_*",
        "*",
        NO_SHARED,
        "goldens of each family beside the repository",
    ),
)
