"""The command `pack`: packs this environment for executors on machines that have only Spark and Python.

The archive is a relocatable virtual environment: what purgatory-waits[pipeline] requires, and a `bin/python` that links
to the machine's own interpreter. Spark unpacks it for each executor:

    --conf spark.archives=environment.tar.gz#environment --conf spark.pyspark.python=./environment/bin/python

Every machine must have the same version of Python at the same path as this one.

Existing packers do not fit: venv-pack packs everything installed (Spark, test tools), and only a link for an editable
install; pex needs packages from an index, where this build may not be; conda-pack needs conda.
"""

import importlib.util
import io
import os
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Final

import click

from purgatory.command_line import FILE
from purgatory_pipeline.errors import PipelineError

DISTRIBUTION: Final = "purgatory-waits"
EXTRA: Final = "pipeline"
PROVIDED_BY_SPARK: Final = ("pyspark", "py4j")
OUR_MODULES: Final = ("purgatory", "purgatory_client", "purgatory_pipeline", "purgatory_engine__mypyc")
_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "tests", "include"})


@click.command()
@click.argument("out", metavar="FILE.tar.gz", type=FILE, help="File to write.")
@click.option(
    "--without",
    metavar="PACKAGE",
    multiple=True,
    help="Leave out this package and its own requirements; may be repeated.",
)
def pack(out: Path, without: tuple[str, ...]) -> None:
    """Packs this environment for executors that have only Spark and Python."""
    packages = write_environment(out, without)
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(packages)} packages, {size:,.1f} MB ({', '.join(packages)})")
    python = "spark.pyspark.python=./environment/bin/python"
    print(f"use it with --conf spark.archives={out}#environment --conf {python}")


def write_environment(out: Path, without: Iterable[str] = ()) -> list[str]:
    """Writes the archive and returns the names of the packages in it. Raises `PipelineError`."""
    packages = required_packages({*PROVIDED_BY_SPARK, *without})
    site = f"lib/python{sysconfig.get_python_version()}/site-packages"
    try:
        with tarfile.open(out, "w:gz", compresslevel=1) as archive:
            _add_interpreter(archive)
            for source, target in [*_our_files(), *(file for name in packages for file in _files_of(name))]:
                archive.add(source, f"{site}/{target}", recursive=False)
    except OSError as error:
        raise PipelineError(f"cannot write {out}: {error.strerror or error}") from error
    return [DISTRIBUTION, *packages]


def required_packages(without: set[str]) -> list[str]:
    """Direct and indirect requirements of the extra, sorted, except `without` and packages that only those require."""
    from packaging.requirements import Requirement  # noqa: PLC0415 -- the extra brings it
    from packaging.utils import canonicalize_name  # noqa: PLC0415

    skipped = {canonicalize_name(name) for name in {*without, DISTRIBUTION}}
    found: set[str] = set()
    waiting = [(DISTRIBUTION, EXTRA)]
    while waiting:
        package, extra = waiting.pop()
        for requirement in map(Requirement, metadata.requires(package) or []):
            name = canonicalize_name(requirement.name)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if applies and name not in found | skipped and _is_installed(name):
                found.add(name)
                waiting += [(name, wanted) for wanted in (requirement.extras or {""})]
    return sorted(found)


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _files_of(package: str) -> Iterator[tuple[Path, PurePosixPath]]:
    """Files of an installed package and their paths in site-packages, as recorded by its installer."""
    for file in metadata.distribution(package).files or []:
        path = Path(str(file.locate()))
        if ".." not in file.parts and path.is_file() and not _is_skipped(file.parts[1:]):
            yield path, PurePosixPath(file)


def _our_files() -> Iterator[tuple[Path, PurePosixPath]]:
    """The same for our own packages, from where they are imported: an editable install records no files."""
    for module in OUR_MODULES:
        spec = importlib.util.find_spec(module)
        if spec is None:  # the engine is not compiled
            continue
        if not spec.submodule_search_locations:
            assert spec.origin is not None, module
            yield Path(spec.origin), PurePosixPath(Path(spec.origin).name)
            continue
        folder = Path(spec.submodule_search_locations[0])
        for path in sorted(folder.rglob("*")):
            target = PurePosixPath(path.relative_to(folder.parent))
            if path.is_file() and not _is_skipped(target.parts):
                yield path, target
    for file in metadata.distribution(DISTRIBUTION).files or []:  # importlib.metadata.version works there too
        if file.parts[0].endswith(".dist-info") and file.name == "METADATA":
            yield Path(str(file.locate())), PurePosixPath(file)


def _is_skipped(parts: Iterable[str]) -> bool:
    return any(part in _SKIPPED_FOLDERS or part.endswith(".pyc") for part in parts)


def _add_interpreter(archive: tarfile.TarFile) -> None:
    """Adds a link to the interpreter and pyvenv.cfg, which make the folder a virtual environment."""
    python = os.path.realpath(sys.executable)
    link = tarfile.TarInfo("bin/python")
    link.type, link.linkname = tarfile.SYMTYPE, python
    archive.addfile(link)
    text = f"home = {Path(python).parent}\ninclude-system-site-packages = false\n".encode()
    settings = tarfile.TarInfo("pyvenv.cfg")
    settings.size = len(text)
    archive.addfile(settings, io.BytesIO(text))
