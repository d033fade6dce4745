"""Tests of the Kubernetes autoscaling manifests: they render, fit their schemas, and measure
existing metrics."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.programs import output_of, program

kubernetes_validate = pytest.importorskip("kubernetes_validate")

ROOT = Path(__file__).parents[2]
AUTOSCALE = ROOT / "deploy" / "kubernetes-autoscale"
VERSION = "1.31"
ROLES = ("prefill", "decode")


@cache
def rendered() -> tuple[dict[str, Any], ...]:
    kubectl = program("kubectl", "install Debian's kubernetes-client")
    return tuple(yaml.safe_load_all(output_of([kubectl, "kustomize", AUTOSCALE])))


def of(kind: str, role: str) -> dict[str, Any]:
    (found,) = [
        item
        for item in rendered()
        if item["kind"] == kind and item["metadata"]["name"] == f"tasuki-{role}"
    ]
    return found


@cache
def rules() -> dict[str, dict[str, Any]]:
    """Return the adapter's rules by metric name, as used in HPAs."""
    values = yaml.safe_load((AUTOSCALE / "prometheus-adapter.yaml").read_text(encoding="utf-8"))
    return {rule["name"]["as"]: rule for rule in values["rules"]["custom"]}


@pytest.mark.parametrize("role", ROLES)
def test_an_autoscaler_fits_its_schema_and_scales_nodes_that_exist(role: str) -> None:
    scaler = of("HorizontalPodAutoscaler", role)
    kubernetes_validate.validate(scaler, VERSION, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(
            {**scaler, "spec": {**scaler["spec"], "maxReplica": 3}}, VERSION, strict=True
        )
    target = of("LeaderWorkerSet", role)
    named = scaler["spec"]["scaleTargetRef"]
    assert named == {
        "apiVersion": target["apiVersion"],
        "kind": target["kind"],
        "name": target["metadata"]["name"],
    }
    assert "replicas" not in target["spec"], "an apply would set the number of nodes back"
    budget = of("PodDisruptionBudget", role)["spec"]
    assert budget["minAvailable"] < scaler["spec"]["minReplicas"]


@pytest.mark.parametrize("role", ROLES)
def test_nodes_go_slowly_and_one_by_one_and_come_at_once(role: str) -> None:
    behavior = of("HorizontalPodAutoscaler", role)["spec"]["behavior"]
    assert behavior["scaleUp"]["stabilizationWindowSeconds"] == 0
    down = behavior["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 600
    assert [(each["type"], each["value"]) for each in down["policies"]] == [("Pods", 1)]
    pod = of("LeaderWorkerSet", role)["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 60, "what is in flight ends first"


@pytest.mark.parametrize("role", ROLES)
def test_what_an_autoscaler_measures_nodes_export(role: str) -> None:
    reference = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    exported = set(re.findall(r"^\| `(\w+)`", reference, re.MULTILINE))
    metrics = of("HorizontalPodAutoscaler", role)["spec"]["metrics"]
    assert len(metrics) == 2
    for metric in metrics:
        rule = rules()[metric["pods"]["metric"]["name"]]
        names = set(re.findall(r"tasuki_\w+", rule["seriesQuery"] + rule["metricsQuery"]))
        known = {re.sub(r"_(sum|count|bucket)$", "", name) for name in names}
        assert known and known <= exported, known - exported
        for braces in re.findall(r"\{([^}]*)\}", rule["metricsQuery"]):
            assert braces.startswith("<<.LabelMatchers>>")
