"""The Kubernetes manifests: they match the schemas and each other, and run the daemon as its image requires."""

from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.service.setting_sources import setting_groups

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
VERSIONS = ("1.28", "1.31", "1.34")
NOT_OF_KUBERNETES = {"Kustomization", "ServiceMonitor"}
"""Their schemas belong to other projects; `test_manifests_fit_each_other` checks their references."""


def manifests() -> dict[str, dict[str, Any]]:
    """The manifests by kind."""
    found = [yaml.safe_load(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.yaml"))]
    return {one["kind"]: one for one in found}


MANIFESTS = manifests()
POD = MANIFESTS["StatefulSet"]["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]


def check_schemas(manifest: dict[str, Any]) -> None:
    """Raises an error unless the manifest matches the schema of its kind in all versions."""
    for version in VERSIONS if manifest["kind"] not in NOT_OF_KUBERNETES else ():
        assert kubernetes_validate.validate(manifest, version, strict=True) == version


@pytest.mark.parametrize("kind", MANIFESTS)
def test_manifest_matches_the_schema_of_its_kind(kind: str) -> None:
    check_schemas(MANIFESTS[kind])


def test_manifests_fit_each_other() -> None:
    listed = set(MANIFESTS["Kustomization"]["resources"])
    assert listed == {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    labels = POD["metadata"]["labels"]
    spec = {kind: manifest.get("spec", {}) for kind, manifest in MANIFESTS.items()}
    assert spec["Service"]["selector"] == labels
    for kind in ("StatefulSet", "PodDisruptionBudget", "ServiceMonitor"):
        assert spec[kind]["selector"]["matchLabels"] == labels, kind
    assert spec["NetworkPolicy"]["podSelector"]["matchLabels"] == labels
    assert spec["StatefulSet"]["serviceName"] == MANIFESTS["Service"]["metadata"]["name"]
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert (
        {port["targetPort"]: port["port"] for port in spec["Service"]["ports"]} == ports == {"grpc": 7440, "http": 7441}
    )
    assert {endpoint["port"] for endpoint in spec["ServiceMonitor"]["endpoints"]} <= set(ports)
    allowed = {port["port"] for rule in spec["NetworkPolicy"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports)


def test_the_daemon_may_call_what_it_can_be_configured_to() -> None:
    """DNS, HTTPS to the internet, and labelled pods at the ports of the systems that the daemon reads from or writes
    to. No rule allows access to the cluster's network or the cloud's metadata service.
    """
    egress = MANIFESTS["NetworkPolicy"]["spec"]["egress"]
    assert all(rule["to"] and rule["ports"] for rule in egress)
    by_ports = [{(port["protocol"], port["port"]) for port in rule["ports"]} for rule in egress]
    assert by_ports[0] == {("UDP", 53), ("TCP", 53)}
    assert by_ports[1] == {("TCP", 443)}
    assert by_ports[2] >= {("TCP", 443), ("TCP", 4318), ("TCP", 5432), ("TCP", 9092)}
    for block in (peer["ipBlock"] for rule in egress for peer in rule["to"] if "ipBlock" in peer):
        allowed, closed = ip_network(block["cidr"]), [ip_network(one) for one in block.get("except", [])]
        for address in map(
            ip_address, ("10.1.2.3", "172.20.0.1", "192.168.1.1", "169.254.169.254", "fd00::1", "fe80::1")
        ):
            assert address not in allowed or any(address in one for one in closed), address
    for peer in (peer for rule in egress for peer in rule["to"] if "namespaceSelector" in peer):
        assert peer["podSelector"]["matchLabels"], "only labelled pods"


def test_the_container_is_confined() -> None:
    """It runs as the image's user, without privileges, and can write only to its volumes, which are all defined."""
    context = POD["spec"]["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"], context["fsGroup"]) == (10001, 10001, 10001)
    assert context["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    claimed = {one["metadata"]["name"] for one in MANIFESTS["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    volumes = claimed | {volume["name"] for volume in POD["spec"]["volumes"]}
    assert {mount["name"] for mount in CONTAINER["volumeMounts"]} == volumes


def test_variables_are_settings_and_probes_are_pages() -> None:
    groups = setting_groups(ALL_SETTINGS)
    known = {f"PURGATORY_{group}_{name}".upper() for group, model in groups.items() for name in model.model_fields}
    assert {variable["name"] for variable in CONTAINER["env"]} <= known
    probes = [CONTAINER[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert [probe["path"] for probe in probes] == ["/readyz", "/healthz", "/readyz"]
    assert {(probe["port"], probe["scheme"]) for probe in probes} == {("http", "HTTPS")}
