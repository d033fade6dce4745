"""Tests of the files shipped for Kubernetes and systemd: they render, fit their schemas, and their
flags parse.

LeaderWorkerSet's own fields are checked against its published API (v1). Its pods and every other
kind are checked against Kubernetes' own schemas.
"""

import os
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import tasuki
from tasuki.decode_node.config import DecodeConfig
from tasuki.engine.config import EngineConfig
from tasuki.prefill_node.config import PrefillConfig
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.dry_run import DryRunConfig
from tasuki.server.daemon.serve_config import HttpAddress
from tasuki.utils.flags import parse_configs
from tests.harness.programs import finished, output_of, program

jsonschema = pytest.importorskip("jsonschema", reason="kubernetes-validate is not installed")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

DEPLOY = Path(__file__).parents[2] / "deploy"
KUBERNETES, SYSTEMD = DEPLOY / "kubernetes", DEPLOY / "systemd"
VERSION = "1.31"
CONFIGS = {"prefill": PrefillConfig, "decode": DecodeConfig}
UNITS = {
    "prefill": "tasuki-prefill.service",
    "decode": "tasuki-decode.service",
    "serve": "tasuki.service",
}
COUNT = {"type": "integer", "minimum": 0}
COUNT_OR_SHARE = {"oneOf": [COUNT, {"type": "string", "pattern": "^[0-9]+%$"}]}
LEADER_WORKER_SET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": COUNT,
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "networkConfig": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"subdomainPolicy": {"enum": ["Shared", "UniquePerReplica"]}},
                },
                "rolloutStrategy": {
                    "type": "object",
                    "required": ["type"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"const": "RollingUpdate"},
                        "rollingUpdateConfiguration": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "partition": COUNT,
                                "maxUnavailable": COUNT_OR_SHARE,
                                "maxSurge": COUNT_OR_SHARE,
                            },
                        },
                    },
                },
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": {"type": "integer", "minimum": 1},
                        "restartPolicy": {
                            "enum": [
                                "Default",
                                "RecreateGroupOnPodRestart",
                                "RecreateGroupAfterStart",
                                "None",
                            ]
                        },
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}


@cache
def rendered() -> tuple[dict[str, Any], ...]:
    kubectl = program("kubectl", "install Debian's kubernetes-client")
    return tuple(yaml.safe_load_all(output_of([kubectl, "kustomize", KUBERNETES])))


def of(kind: str, name: str) -> dict[str, Any]:
    (found,) = [
        item for item in rendered() if item["kind"] == kind and item["metadata"]["name"] == name
    ]
    return found


def pod_of(role: str) -> dict[str, Any]:
    template = of("LeaderWorkerSet", f"tasuki-{role}")["spec"]["leaderWorkerTemplate"]
    pod: dict[str, Any] = template["workerTemplate"]
    return pod


def validate(item: dict[str, Any]) -> None:
    kubernetes_validate.validate(item, VERSION, strict=True)


def parsed(role: str, flags: Sequence[str]) -> tuple[Any, ...]:
    """Parse the flags as the daemon does; exit if one is wrong."""
    kinds = (CONFIGS[role],) if role in CONFIGS else (DryRunConfig, HttpAddress)
    return parse_configs(f"tasuki {role}", "", flags, EngineConfig, ServerConfig, *kinds)


def test_every_object_fits_its_schema() -> None:
    kinds = sorted(item["kind"] for item in rendered())
    assert kinds.count("LeaderWorkerSet") == kinds.count("PodDisruptionBudget") == 2
    for item in rendered():
        if item["kind"] != "LeaderWorkerSet":
            validate(item)
            continue
        jsonschema.validate(item, LEADER_WORKER_SET)
        pod = item["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        name = {"name": item["metadata"]["name"]}
        validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": name, "template": pod})


def test_the_schemas_refuse_what_is_wrong() -> None:
    budget = of("PodDisruptionBudget", "tasuki-decode")
    with pytest.raises(kubernetes_validate.ValidationError):
        validate({**budget, "spec": {**budget["spec"], "minAvailabel": 1}})
    workers = of("LeaderWorkerSet", "tasuki-decode")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            {**workers, "spec": {**workers["spec"], "replica": 1}}, LEADER_WORKER_SET
        )


@pytest.mark.parametrize("role", [*CONFIGS])
def test_a_pod_starts_a_node_whose_flags_exist(role: str, tmp_path: Path) -> None:
    pod = pod_of(role)
    (container,) = pod["spec"]["containers"]
    command, *flags = [argument.replace("$(POD_NAME)", "pod-0") for argument in container["args"]]
    assert command == role
    (volume,) = [v for v in pod["spec"]["volumes"] if v["name"] == "config"]
    settings = of("ConfigMap", volume["configMap"]["name"])["data"][f"{role}.toml"]
    (tmp_path / f"{role}.toml").write_text(settings, encoding="utf-8")
    here = [flag.replace("/config", str(tmp_path)) for flag in flags]
    engine, front, node = parsed(role, here)
    assert engine.model == "/model" and node.name == "pod-0" and node.etcd.startswith("https://")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert front.bind.endswith(f":{ports['grpc']}")
    assert front.http_bind.endswith(f":{ports['http']}")
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        asked = container[probe]["httpGet"]
        assert asked["path"] in ("/health", "/ready") and asked["scheme"] == "HTTPS"
    assert front.tls_cert
    assert stopping_seconds(pod["spec"], front) < pod["spec"]["terminationGracePeriodSeconds"]
    assert front.drain_grace >= 2 * container["readinessProbe"]["periodSeconds"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    for file, volume in ((front.etcd_login, "etcd"), (front.etcd_ca, "tls")):
        assert file.startswith(mounts[volume] + "/")
    environment = {item["name"]: item.get("value", "") for item in container["env"]}
    assert environment["TRITON_CACHE_DIR"].startswith(mounts["cache"] + "/")
    mounted = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == mounted


def stopping_seconds(pod: dict[str, Any], front: ServerConfig) -> float:
    """Return the time from the start of a pod's termination to its node's exit, in seconds."""
    (container,) = pod["containers"]
    before = container["lifecycle"]["preStop"]["exec"]["command"]
    assert before[0] == "sleep"
    return float(before[1]) + front.drain_grace + front.drain_timeout


def test_pods_run_the_image_that_the_dockerfile_makes() -> None:
    project = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]
    image = (DEPLOY / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["tasuki"]' in image
    for role in CONFIGS:
        pod = pod_of(role)["spec"]
        (container,) = pod["containers"]
        assert container["image"] == f"{project['name']}:{tasuki.__version__}"
        assert "command" not in container and container["args"][0] == role
        assert f"--uid {pod['securityContext']['runAsUser']} " in image
    # Only one of the two transports fits a driver, and a CUDA build of torch brings triton.
    extras = {*project["optional-dependencies"]} - {"cu12", "cuda"}
    (installed,) = re.findall(r"\.whl\)\[([a-z0-9,]+)\]", image)
    assert set(installed.split(",")) == extras
    assert "TRITON_CACHE_DIR=/var/cache/tasuki/triton" in image
    assert 'VOLUME ["/models", "/var/cache/tasuki/triton"]' in image


def test_budgets_and_the_front_door_choose_pods_that_exist() -> None:
    for role in CONFIGS:
        labels = pod_of(role)["metadata"]["labels"]
        budget = of("PodDisruptionBudget", f"tasuki-{role}")["spec"]
        assert budget["selector"]["matchLabels"].items() <= labels.items()
        workers = of("LeaderWorkerSet", f"tasuki-{role}")["spec"]
        assert budget["minAvailable"] < workers["replicas"], "or no node could ever be drained"
    door = of("Service", "tasuki")["spec"]
    assert door["selector"].items() <= pod_of("decode")["metadata"]["labels"].items()


@pytest.mark.parametrize("role", [*UNITS])
def test_a_unit_is_one_that_systemd_takes(role: str, tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "install Debian's systemd")
    name = UNITS[role]
    text = (SYSTEMD / name).read_text(encoding="utf-8")
    # This machine has neither the program nor the user of the unit.
    here = text.replace("/opt/tasuki/bin/tasuki", "/bin/true").replace("=tasuki\n", "=root\n")
    (tmp_path / name).write_text(here, encoding="utf-8")
    for command in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=40"]):
        run = finished([analyze, *command, tmp_path / name])
        assert run.returncode == 0 and "Unknown" not in run.stderr, run.stdout + run.stderr


@pytest.mark.parametrize("role", [*UNITS])
def test_a_unit_starts_a_node_whose_settings_exist(role: str) -> None:
    unit = (SYSTEMD / UNITS[role]).read_text(encoding="utf-8")
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    _, command, *flags = line.removeprefix("ExecStart=").split()
    assert command == role
    here = [flag.replace("/etc/tasuki", str(SYSTEMD)) for flag in flags]
    _, front, *_ = parsed(role, here)
    settings = tomllib.loads((SYSTEMD / f"{role}.toml").read_text(encoding="utf-8"))
    assert front.bind == settings["bind"]
    (stop,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(stop.split("=")[1]) > front.drain_grace + front.drain_timeout
    assert front.drain_grace == 5
    assert "\nType=notify\n" in unit and "\nTimeoutStartSec=" in unit


def test_the_script_puts_all_that_units_name_in_place(tmp_path: Path) -> None:
    output_of([SYSTEMD / "install", *UNITS], env={**os.environ, "DESTDIR": str(tmp_path)})
    for unit in UNITS.values():
        text = (tmp_path / "etc/systemd/system" / unit).read_text(encoding="utf-8")
        named = re.findall(
            r"file://(\S+)|--config=(\S+)|^EnvironmentFile=-(\S+)", text, re.MULTILINE
        )
        paths = [path for found in named for path in found if path]
        assert len(paths) == 3
        for path in paths:
            assert (tmp_path / path.lstrip("/")).is_file(), path
    assert (tmp_path / "etc/tasuki/environment").stat().st_mode & 0o777 == 0o600
    # An operator's settings stay.
    (tmp_path / "etc/tasuki/serve.toml").write_text("mine")
    output_of([SYSTEMD / "install", "serve"], env={**os.environ, "DESTDIR": str(tmp_path)})
    assert (tmp_path / "etc/tasuki/serve.toml").read_text() == "mine"
    wrong = finished([SYSTEMD / "install", "both"], env={**os.environ, "DESTDIR": str(tmp_path)})
    assert wrong.returncode == 2 and "serve, prefill or decode" in wrong.stderr
