"""The packed environment: its packages, and that its Python imports ours from there."""

import subprocess
import tarfile
from pathlib import Path

import pytest
from purgatory_pipeline import cli, pack

from purgatory.engine import COMPILED

LARGE = ("numpy", "pandas", "pyarrow", "vl-convert-python", "altair", "grpcio")


def test_packed_packages_follow_the_requirements() -> None:
    names = pack.required_packages({"pyspark", "py4j"})
    assert {"pyarrow", "pandas", "numpy", "python-dateutil", "click", "altair"} <= set(names)
    assert not {"pyspark", "py4j", "pytest", "ruff", "uvloop", "aiohttp", "purgatory"} & set(names)


def test_an_omitted_package_takes_its_requirements_with_it() -> None:
    everything = set(pack.required_packages(set()))
    without = set(pack.required_packages({"pandas"}))
    assert {"pandas", "python-dateutil"} <= everything - without


@pytest.mark.slow  # packs, unpacks and starts a Python
def test_unpacked_anywhere_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "environment.tar.gz"
    words = [word for name in LARGE for word in ("--without", name)]
    assert cli.main(["pack", str(out), *words]) == 0
    shown = capsys.readouterr().out
    assert f"--conf spark.archives={out}#environment" in shown
    assert not [name for name in LARGE if f" {name}," in shown]
    with tarfile.open(out) as archive:
        names = archive.getnames()
        assert not [name for name in names if "__pycache__" in name or "/pyspark/" in name or name.startswith("/")]
        archive.extractall(tmp_path / "there", filter="fully_trusted")
    program = (
        "import sys, purgatory, purgatory.engine, purgatory_pipeline.cli, click;"
        "files = [m.__file__ for m in (purgatory, purgatory_pipeline, click)];"
        "print(all(f.startswith(sys.prefix) for f in files), purgatory.engine.COMPILED, sys.prefix);"
        "import importlib.metadata; print(importlib.metadata.version('purgatory-waits') == purgatory.__version__)"
    )
    python = tmp_path / "there" / "bin" / "python"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False, env={}, cwd=tmp_path)
    assert done.stdout.split() == ["True", str(COMPILED), str(tmp_path / "there"), "True"], done.stderr


def test_place_that_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "nowhere" / "environment.tar.gz"
    assert cli.main(["pack", str(out)]) == cli.EXIT_UNUSABLE
    assert capsys.readouterr().err == f"purgatory-pipeline: cannot write {out}: No such file or directory\n"
