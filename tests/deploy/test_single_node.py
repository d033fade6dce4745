"""One `tasuki serve` node by Kubernetes and by compose: held against schemas, its flags parsed."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tasuki.engine.config import EngineConfig
from tasuki.server.config import ServerConfig
from tasuki.server.daemon.dry_run import DryRunConfig
from tasuki.server.daemon.serve_config import HttpAddress
from tasuki.utils.flags import parse_configs

kubernetes_validate = pytest.importorskip("kubernetes_validate")

DEPLOY = Path(__file__).parents[2] / "deploy"
VERSION = "1.31"
SECONDS = {"s": 1, "m": 60}


def parsed(arguments: list[str]) -> tuple[Any, ...]:
    command, *flags = arguments
    assert command == "serve"
    kinds = (EngineConfig, ServerConfig, DryRunConfig, HttpAddress)
    return parse_configs("tasuki serve", "", flags, *kinds)


def manifest() -> dict[str, dict[str, Any]]:
    """Return the manifest's objects by kind."""
    text = (DEPLOY / "kubernetes-single" / "node.yaml").read_text(encoding="utf-8")
    return {item["kind"]: item for item in yaml.safe_load_all(text)}


def test_the_manifest_fits_its_schemas() -> None:
    assert sorted(manifest()) == ["Deployment", "PersistentVolumeClaim", "Service"]
    for item in manifest().values():
        kubernetes_validate.validate(item, VERSION, strict=True)


def test_its_pod_starts_a_node_and_keeps_what_it_has_downloaded_and_compiled() -> None:
    template = manifest()["Deployment"]["spec"]["template"]
    pod = template["spec"]
    (container,) = pod["containers"]
    engine, front, _, http = parsed(container["args"])
    assert engine.device == "cuda" and front.api_keys and front.insecure
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert http.port == ports["http"]
    before = float(container["lifecycle"]["preStop"]["exec"]["command"][1])
    stopping = before + front.drain_grace + front.drain_timeout
    assert stopping < pod["terminationGracePeriodSeconds"] and front.drain_grace == 5
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    kept = [item["value"] for item in container["env"]]
    assert len(kept) == 2 and all(path.startswith(mounts["data"] + "/") for path in kept)
    assert front.api_keys.startswith(mounts["keys"] + "/")
    assert {volume["name"] for volume in pod["volumes"]} == {*mounts}
    labels = template["metadata"]["labels"]
    assert manifest()["Service"]["spec"]["selector"].items() <= labels.items()


class Compose(yaml.SafeLoader):
    """A YAML loader for the tag of Compose that removes an earlier file's setting."""


Compose.add_constructor("!reset", lambda loader, node: None)


def service(file: str) -> dict[str, Any]:
    text = (DEPLOY / "compose" / file).read_text(encoding="utf-8")
    document = yaml.load(text, Compose)
    found: dict[str, Any] = document["services"]["tasuki"]
    return found


def test_compose_starts_a_node_of_the_image_on_this_machine_alone() -> None:
    node = service("compose.yaml")
    engine, front, _, http = parsed(node["command"])
    assert engine.device == "cuda" and front.drain_grace == 5
    assert node["ports"] == [f"127.0.0.1:{http.port}:{http.port}"]
    assert front.api_keys == f"/run/secrets/{node['secrets'][0]}"
    folders = [volume.partition(":")[2] for volume in node["volumes"]]
    image = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    (declared,) = [line for line in image.splitlines() if line.startswith("VOLUME ")]
    assert yaml.safe_load(declared.removeprefix("VOLUME ")) == folders
    grace = node["stop_grace_period"]
    assert int(grace[:-1]) * SECONDS[grace[-1]] > front.drain_grace + front.drain_timeout
    context = (DEPLOY / "compose" / node["build"]["context"]).resolve()
    assert (context / node["build"]["dockerfile"]).is_file()


def test_without_a_gpu_compose_asks_for_none() -> None:
    node = service("cpu.yaml")
    engine, *_ = parsed(node["command"])
    assert engine.device == "cpu" and node["deploy"] is None
