"""Unusable settings are rejected by name before anything is loaded; the error says how to fix
them."""

from math import inf, nan
from typing import Any

import pytest
import torch

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig, EngineConfigError
from tests.harness.goldens import reference_dir

DISK = {"disk_cache": "x", "disk_cache_gib": 1.0, "host_cache_gib": 1.0}
REMOTE = {
    "remote_cache": "s3://a",
    "remote_cache_gib": 1.0,
    "remote_endpoint": "http://x",
    "host_cache_gib": 1.0,
}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"prefill_chunk_tokens": 100}, "prefill_chunk_tokens"),
        ({"arena_mib": 0}, "arena_mib"),
        ({"draft_tokens": 10**9}, "draft_tokens must be at most 64"),
        ({"device": "tpu"}, "device must be cpu, cuda or cuda:N, not 'tpu'"),
        ({"device": "cuda:x"}, "device must be cpu, cuda or cuda:N, not 'cuda:x'"),
        ({"device": "cuda:1:2"}, "device must be cpu, cuda or cuda:N, not 'cuda:1:2'"),
        ({"device": "cpu:3"}, "device must be cpu, cuda or cuda:N, not 'cpu:3'"),
        *(({"queue_timeout": seconds}, "queue_timeout") for seconds in (0.0, -1.0, inf, nan)),
        *(({"max_itl_ms": given}, "max_itl_ms") for given in (0.0, -1.0, nan, inf)),
        *(({"host_cache_gib": gib}, "host_cache_gib") for gib in (0.0, -1.0, inf, nan)),
        ({"disk_cache": "x", "host_cache_gib": 1.0}, "disk_"),
        (DISK | {"disk_cache": ""}, "disk_"),
        ({"disk_cache_gib": 1.0, "host_cache_gib": 1.0}, "disk_"),
        ({"disk_cache": "x", "disk_cache_gib": 1.0}, "disk_"),
        ({"disk_write_budget": 1.0}, "disk_"),
        (DISK | {"disk_cache_gib": 0.0}, "disk_"),
        (REMOTE | {"remote_cache_gib": None}, "remote_"),
        (REMOTE | {"remote_cache": None}, "remote_"),
        (REMOTE | {"host_cache_gib": None}, "remote_|host_cache_gib"),
        (REMOTE | {"remote_cache_gib": 0.0}, "remote_"),
        (REMOTE | {"remote_write_budget": -1.0}, "remote_"),
        (REMOTE | {"tensor_parallel": 2}, "remote_"),
        (REMOTE | {"remote_cache": None, "remote_cache_gib": None}, "remote_"),
    ],
    ids=str,
)
def test_settings_that_cannot_work_are_named(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(EngineConfigError, match=named):
        EngineConfig(model="m", **settings)


def test_settings_are_given_by_name() -> None:
    """By position, a new setting would take the place of another in existing calls."""
    with pytest.raises(TypeError, match="positional"):
        EngineConfig("", "float32")  # type: ignore[misc]


def test_a_node_on_a_gpu_may_have_tiers() -> None:
    remote = {"remote_cache": "s3://b", "remote_cache_gib": 1.0}
    assert EngineConfig(model="m", device="cuda", **DISK | remote).disk_cache == "x"  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named_before_anything_is_loaded() -> None:
    with pytest.raises(EngineConfigError, match="PyTorch sees no GPU here"):
        build_parts(EngineConfig(model=str(reference_dir("small-dense")), device="cuda"))
