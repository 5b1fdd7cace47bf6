"""Packages in the image and for development: pinned as in constraints.txt, by hash, from any registry."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def pins(path: Path) -> dict[str, str]:
    """Versions by normalized name."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in found}


@pytest.mark.parametrize(
    "name", [f"{part}requirements.txt" for part in ("", "archive-", "sources-", "build-", "development-")]
)
def test_what_is_installed_is_constrained(name: str) -> None:
    """Each package has the version of constraints.txt and at least one hash, and no registry is named.

    If this fails, run `make image-requirements`.
    """
    path = ROOT / "deploy" / name
    pinned, constrained = pins(path), pins(ROOT / "constraints.txt")
    assert {package: constrained.get(package) for package in pinned} == pinned
    text = path.read_text("utf-8").replace("\\\n", " ")
    assert "://" not in text
    assert all("--hash=sha256:" in line for line in text.splitlines() if "==" in line)


def test_image_installs_all_that_the_daemon_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras, groups = project["project"]["optional-dependencies"], project["dependency-groups"]
    for wanted, name in (
        (project["project"]["dependencies"] + extras["server"], "requirements.txt"),
        (extras["archive"], "archive-requirements.txt"),
        (
            extras["kafka"] + extras["postgres"] + extras["mysql"] + extras["redis"] + extras["poll"],
            "sources-requirements.txt",
        ),
        (project["build-system"]["requires"], "build-requirements.txt"),
        (
            [one for group in groups.values() for one in group if isinstance(one, str)]
            + [one for extra in extras.values() for one in extra],
            "development-requirements.txt",
        ),
    ):
        names = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", one)[0]).lower() for one in wanted}
        assert names <= set(pins(ROOT / "deploy" / name))


def test_plain_image_has_no_room_for_an_archive() -> None:
    assert not {"pyarrow", "numpy"} & set(pins(ROOT / "deploy" / "requirements.txt"))


def test_dockerfile_installs_by_hash_only() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    installs = re.findall(r"-m pip (?:--python \S+ )?install ([^\n]*)", text)
    assert len(installs) == 5
    assert all("--require-hashes" in arguments or "--no-deps" in arguments for arguments in installs)


def test_environment_of_the_image_has_no_installer() -> None:
    text = (ROOT / "Dockerfile").read_text("utf-8")
    assert re.findall(r"-m venv (.*?)/opt/purgatory", text) == ["--without-pip "]


def test_last_stage_is_the_plain_one() -> None:
    """`docker build` without a target builds the image without optional parts, and the named targets exist."""
    stages = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert stages[-1] == ("serving", "")
    assert {"archive", "sources", "full"} <= {name for _, name in stages}
