"""Tests of the shipped files for nodes of several GPUs: they render, fit their schemas, and their
flags parse."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasuki.cli.ray.config import asked
from tasuki.decode_node.config import DecodeConfig
from tasuki.engine.config import EngineConfig
from tasuki.prefill_node.config import PrefillConfig
from tasuki.server.config import ServerConfig
from tasuki.utils.flags import parse_configs
from tests.harness.programs import output_of, program

kubernetes_validate = pytest.importorskip("kubernetes_validate")

DEPLOY = Path(__file__).parents[2] / "deploy"
VERSION = "1.31"
CONFIGS = {"prefill": PrefillConfig, "decode": DecodeConfig}


@cache
def rendered() -> dict[str, dict[str, Any]]:
    """Return the rendered objects by kind."""
    kubectl = program("kubectl", "install Debian's kubernetes-client")
    text = output_of([kubectl, "kustomize", DEPLOY / "kubernetes-ranks"])
    return {item["kind"]: item for item in yaml.safe_load_all(text)}


def test_every_object_fits_its_schema() -> None:
    assert sorted(rendered()) == ["ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"]
    for item in rendered().values():
        kubernetes_validate.validate(item, VERSION, strict=True)


def test_a_pod_has_a_gpu_for_each_rank_and_flags_that_exist(tmp_path: Path) -> None:
    pod = rendered()["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    command, *flags = container["args"]
    assert command == "serve"
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "config"]
    config = rendered()["ConfigMap"]
    assert volume["configMap"]["name"] == config["metadata"]["name"]
    (tmp_path / "node.toml").write_text(config["data"]["node.toml"], encoding="utf-8")
    here = [flag.replace("/config", str(tmp_path)) for flag in flags]
    engine, front = parse_configs("tasuki serve", "", here, EngineConfig, ServerConfig)
    gpus = container["resources"]["limits"]["nvidia.com/gpu"]
    assert engine.tensor_parallel == int(gpus) > 1 and engine.device == "cuda"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert front.bind.endswith(f":{ports['grpc']}")
    assert front.http_bind.endswith(f":{ports['http']}")
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    stopping = before + front.drain_grace + front.drain_timeout
    assert pod["spec"]["terminationGracePeriodSeconds"] > stopping
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert environment["TRITON_CACHE_DIR"].startswith(mounts["cache"] + "/")
    labels = pod["metadata"]["labels"].items()
    assert rendered()["Service"]["spec"]["selector"].items() <= labels
    assert rendered()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels


def dropped_in(role: str) -> tuple[list[str], list[str]]:
    """Return the GPUs visible to a unit's node, and its command's flags."""
    file = DEPLOY / "systemd" / f"tasuki-{role}.service.d" / "ranks.conf"
    lines = file.read_text(encoding="utf-8").splitlines()
    (gpus,) = [line for line in lines if line.startswith("Environment=CUDA_VISIBLE_DEVICES=")]
    _, started = [line for line in lines if line.startswith("ExecStart=")]
    _, command, *flags = started.removeprefix("ExecStart=").split()
    assert command == role
    here = str(DEPLOY / "systemd")
    return gpus.rpartition("=")[2].split(","), [flag.replace("/etc/tasuki", here) for flag in flags]


def test_units_of_a_pair_take_gpus_of_their_own_and_see_the_others() -> None:
    taken, seen, ports = [], [], []
    for role, config in CONFIGS.items():
        gpus, flags = dropped_in(role)
        engine, _, node = parse_configs(role, "", flags, EngineConfig, ServerConfig, config)
        assert engine.tensor_parallel == int(asked("tensor_parallel", flags, "1")) == 2
        taken += gpus[: engine.tensor_parallel]
        seen.append(sorted(gpus))
        ports.append(node.handover_bind if role == "prefill" else node.prefill)
    assert len(set(taken)) == len(taken) and seen[0] == seen[1] == sorted(taken)
    assert ports[0] == ports[1]
