"""What the image installs: pinned as constraints.txt has it, by hash, from anywhere."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pins(path: Path) -> dict[str, str]:
    """Version by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize("name", ["requirements.txt", "build-requirements.txt"])
def test_image_installs_what_is_constrained(name: str) -> None:
    """Each package has the version of constraints.txt and at least one hash, and no registry is named.

    When this fails: make image-requirements.
    """
    path = ROOT / "deploy" / name
    pinned, constrained = pins(path), pins(ROOT / "constraints.txt")
    assert {package: constrained.get(package) for package in pinned} == pinned
    text = path.read_text("utf-8").replace("\\\n", " ")
    assert "://" not in text
    assert all("--hash=sha256:" in line for line in text.splitlines() if "==" in line)


def test_image_installs_all_that_the_daemon_needs() -> None:
    """Every dependency of the package and of its server part is pinned, so is what builds it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    server = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["server"]
    for wanted, name in (
        (server, "requirements.txt"),
        (project["build-system"]["requires"], "build-requirements.txt"),
    ):
        names = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", one)[0]).lower() for one in wanted}
        assert names <= set(pins(ROOT / "deploy" / name))


def test_dockerfile_installs_by_hash_only() -> None:
    """No pip in the Dockerfile reaches for a package that is not pinned by hash."""
    installs = re.findall(r"pip install ([^\n]*)", (ROOT / "Dockerfile").read_text("utf-8"))
    assert len(installs) == 3
    assert all("--require-hashes" in arguments or "--no-deps" in arguments for arguments in installs)
