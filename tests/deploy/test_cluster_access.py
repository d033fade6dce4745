"""Tests of access inside the shipped cluster: policies, etcd, certificates, metrics, RDMA."""

import re
import ssl
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasuki.decode_node.config import DecodeConfig
from tasuki.utils.tls import ClientTls, ServerTls
from tests.harness.programs import output_of, program

kubernetes_validate = pytest.importorskip("kubernetes_validate")

DEPLOY = Path(__file__).parents[2] / "deploy"
VERSION = "1.31"
NODES = ("tasuki-prefill", "tasuki-decode")
Items = tuple[dict[str, Any], ...]


@cache
def rendered(folder: str = "kubernetes") -> Items:
    kubectl = program("kubectl", "install Debian's kubernetes-client")
    return tuple(yaml.safe_load_all(output_of([kubectl, "kustomize", DEPLOY / folder])))


def of(kind: str, name: str, folder: str = "kubernetes") -> dict[str, Any]:
    (found,) = [
        item
        for item in rendered(folder)
        if item["kind"] == kind and item["metadata"]["name"] == name
    ]
    return found


def pod_of(name: str, folder: str = "kubernetes") -> dict[str, Any]:
    for kind in ("LeaderWorkerSet", "StatefulSet", "Job"):
        for item in rendered(folder):
            if item["kind"] == kind and item["metadata"]["name"] == name:
                spec = item["spec"]
                pod: dict[str, Any] = (
                    spec["leaderWorkerTemplate"]["workerTemplate"]
                    if kind == "LeaderWorkerSet"
                    else spec["template"]
                )
                return pod
    raise AssertionError(f"no pod is called {name}")


def chooses(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    expressions = selector.get("matchExpressions", ())
    assert all(item["operator"] == "In" for item in expressions)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(item["key"]) in item["values"] for item in expressions
    )


def lets_in(target: str, port: int, caller: str | None) -> bool:
    """Return true if any policy lets a pod of the caller's namespace reach this port. caller:
    namespace, or None for a stranger's pod."""
    policies = [item["spec"] for item in rendered() if item["kind"] == "NetworkPolicy"]
    labels = pod_of(target)["metadata"]["labels"]
    chosen = [policy for policy in policies if chooses(policy["podSelector"], labels)]
    assert chosen, f"no policy guards {target}: every port is open"
    for rule in (rule for policy in chosen for rule in policy["ingress"]):
        ports = [(item["port"], item.get("endPort", item["port"])) for item in rule["ports"]]
        if not any(first <= port <= last for first, last in ports):
            continue
        if "from" not in rule:
            return True
        if caller is not None:
            called = pod_of(caller)["metadata"]["labels"]
            selectors = [peer["podSelector"] for peer in rule["from"] if "podSelector" in peer]
            if any(chooses(selector, called) for selector in selectors):
                return True
    return False


def environment(name: str, folder: str = "kubernetes") -> dict[str, str]:
    (container,) = pod_of(name, folder)["spec"]["containers"]
    return {item["name"]: item.get("value", "") for item in container["env"]}


def ucx_ports(name: str) -> range:
    first, last = map(int, environment(name)["UCX_TCP_PORT_RANGE"].split("-"))
    return range(first, last + 1)


def test_hand_overs_and_their_data_are_for_nodes_alone() -> None:
    for target in NODES:
        for port in (7001, *ucx_ports(target)):
            assert all(lets_in(target, port, caller) for caller in NODES)
        for port in ucx_ports(target):
            assert not lets_in(target, port, None), f"{target}'s data is open to every pod"
            assert not lets_in(target, port, "tasuki-etcd")
        for beside in (ucx_ports(target)[0] - 1, ucx_ports(target)[-1] + 1):
            assert not lets_in(target, beside, "tasuki-decode")
    assert not lets_in("tasuki-prefill", 7001, None), "hand-overs are open to every pod"
    assert not lets_in("tasuki-prefill", 8000, None)


def test_clients_reach_decode_nodes() -> None:
    for port in of("Service", "tasuki")["spec"]["ports"]:
        named = {item["name"]: item["containerPort"] for item in ports_of("tasuki-decode")}
        assert lets_in("tasuki-decode", named[port["targetPort"]], None)


def ports_of(name: str) -> list[dict[str, Any]]:
    (container,) = pod_of(name)["spec"]["containers"]
    ports: list[dict[str, Any]] = container["ports"]
    return ports


def test_etcd_is_for_nodes_and_has_tls_and_a_user() -> None:
    callers = (*NODES, "tasuki-etcd-users")
    assert all(lets_in("tasuki-etcd", 2379, caller) for caller in callers)
    assert not lets_in("tasuki-etcd", 2379, None)
    pod = pod_of("tasuki-etcd")["spec"]
    (container,) = pod["containers"]
    urls = [word for word in container["command"] if "urls" in word]
    assert len(urls) == 2 and all("=https://" in word for word in urls)
    assert any(word.startswith("--cert-file=/tls/") for word in container["command"])
    (setup,) = pod_of("tasuki-etcd-users")["spec"]["containers"]
    options = dict(word.removeprefix("--").split("=", 1) for word in setup["command"][2:])
    mounted = [mount["mountPath"] for mount in setup["volumeMounts"]]
    for name in ("ca", "root", "login"):
        assert any(options[name].startswith(f"{path}/") for path in mounted)
    assert DecodeConfig().etcd_prefix.startswith(options["prefix"])


@pytest.mark.parametrize("name", ["tasuki-etcd", "tasuki-etcd-users", *NODES])
def test_no_pod_has_more_rights_than_it_needs(name: str) -> None:
    pod = pod_of(name)["spec"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in pod["containers"]:
        rights = container["securityContext"]
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert rights["allowPrivilegeEscalation"] is False


SECRETS = ("tasuki-tls", "tasuki-etcd-tls")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of certificates made by the recipe."""
    program("openssl", "install Debian's openssl")
    folder = tmp_path_factory.mktemp("certificates")
    output_of([DEPLOY / "certificates" / "make", folder])
    return folder


def names_in(certificate: Path) -> set[str]:
    shown = output_of(
        ["openssl", "x509", "-in", certificate, "-noout", "-ext", "subjectAltName,extendedKeyUsage"]
    )
    return {*re.findall(r"DNS:([^,\s]+)", shown), *re.findall(r"TLS Web (\w+)", shown)}


def test_the_recipe_s_certificates_fit_a_server_and_a_client(certificates: Path) -> None:
    for secret in SECRETS:
        files = certificates / secret
        own = [str(files / name) for name in ("tls.crt", "tls.key", "ca.crt")]
        ServerTls(*own).grpc_credentials()
        ClientTls(own[2], *own[:2]).grpc_credentials()
        output_of(["openssl", "verify", "-CAfile", own[2], own[0]])
        assert (files / "tls.key").stat().st_mode & 0o077 == 0
    assert {"Server", "Client"} <= names_in(certificates / "tasuki-tls" / "tls.crt")


def test_certificates_have_the_names_that_nodes_are_called_by(certificates: Path) -> None:
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    assert context.get_ca_certs()
    (container,) = pod_of("tasuki-prefill")["spec"]["containers"]
    (advertised,) = [word for word in container["args"] if word.startswith("--advertise=")]
    host = advertised.partition("=")[2].rpartition(":")[0].replace("$(POD_NAME)", "*")
    names = names_in(certificates / "tasuki-tls" / "tls.crt")
    endpoint = pod_monitor()["podMetricsEndpoints"][0]
    assert {host, of("Service", "tasuki")["metadata"]["name"], "tasuki-ranks"} <= names
    assert endpoint["tlsConfig"]["serverName"] in names
    assert "tasuki-etcd" in names_in(certificates / "tasuki-etcd-tls" / "tls.crt")


def test_a_second_run_keeps_what_there_is(certificates: Path) -> None:
    before = (certificates / "tasuki-tls" / "tls.crt").read_bytes()
    output_of([DEPLOY / "certificates" / "make", certificates])
    assert (certificates / "tasuki-tls" / "tls.crt").read_bytes() == before


@pytest.mark.parametrize("secret", SECRETS)
def test_cert_manager_is_asked_for_the_same(secret: str, certificates: Path) -> None:
    spec = of("Certificate", secret, "kubernetes-cert-manager")["spec"]
    assert spec["secretName"] == secret
    usages = {"server auth": "Server", "client auth": "Client"}
    asked = {usages[usage] for usage in spec["usages"] if usage in usages}
    assert {*spec["dnsNames"], *asked} == names_in(certificates / secret / "tls.crt")
    assert of("Issuer", spec["issuerRef"]["name"], "kubernetes-cert-manager")


def pod_monitor() -> dict[str, Any]:
    spec: dict[str, Any] = of("PodMonitor", "tasuki", "kubernetes-monitoring")["spec"]
    return spec


def test_prometheus_scrapes_every_node_by_tls_and_with_a_key() -> None:
    monitor = pod_monitor()
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["scheme"] == "https" and endpoint["path"] == "/metrics"
    assert endpoint["authorization"]["credentials"]["name"] == "tasuki-metrics-key"
    for name in NODES:
        assert chooses(monitor["selector"], pod_of(name)["metadata"]["labels"])
        assert endpoint["port"] in [port["name"] for port in ports_of(name)]
    scaled = [item["kind"] for item in rendered("kubernetes-autoscale")]
    assert "PodMonitor" in scaled, "autoscaling measures what is scraped"


@pytest.mark.parametrize("name", NODES)
def test_an_rdma_pod_has_a_card_and_may_lock_memory(name: str) -> None:
    folder = "kubernetes-rdma"
    (container,) = pod_of(name, folder)["spec"]["containers"]
    assert container["resources"]["limits"]["rdma/hca"] == "1"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
    assert environment(name, folder)["UCX_NET_DEVICES"] == "mlx5_0:1"
    assert {*environment(name, folder)} > {*environment(name)}
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": name}}
    kubernetes_validate.validate({**pod, "template": pod_of(name, folder)}, VERSION, strict=True)
