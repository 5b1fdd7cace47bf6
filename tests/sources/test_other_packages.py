"""Connectors of other packages, which are found by their entry points."""

from pathlib import Path

import pytest
from purgatory_connectors import SourceRefused, SourceUri, SourceUriInvalid
from purgatory_connectors.cli import open_source


def install(folder: Path, name: str, target: str, scheme: str = "other") -> None:
    """Write the files that pip leaves of a package without modules."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[purgatory.connectors]\n{scheme} = {target}\n")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("there_is_no_such_module:open_source", "ModuleNotFoundError"),
        ("json:open_source", "AttributeError"),
        ("json:loads", "failed: TypeError"),
        ("builtins:str", "instead of a Source"),
    ],
)
def test_broken_connector_is_refused_with_its_package(site: Path, target: str, reason: str) -> None:
    install(site, "broken", target)
    with pytest.raises(SourceRefused, match=f"the connector of broken 1.0, {target}, .*{reason}"):
        open_source(SourceUri.parse("other://h"))


def test_scheme_of_two_packages_is_refused_with_both(site: Path) -> None:
    for name in ("one", "two"):
        install(site, name, "builtins:str")
    with pytest.raises(SourceUriInvalid, match=r"several packages, .*: (one 1.0, two|two 1.0, one) 1\.0"):
        SourceUri.parse("other://h")


def test_unknown_scheme_is_refused_with_those_of_installed_packages(site: Path) -> None:
    """A scheme of the package itself is unchanged."""
    install(site, "mine", "builtins:str")
    install(site, "theirs", "builtins:str", "redis")
    with pytest.raises(SourceUriInvalid, match=r"must begin with kafka://.*, poll\+sql://, other://$"):
        SourceUri.parse("another://h")
    assert SourceUri.parse("redis://h").kind == "redis"
