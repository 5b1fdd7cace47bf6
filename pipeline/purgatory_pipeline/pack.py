"""The command `pack`: this environment as one archive, for executors on machines that have Spark and Python only.

What is packed is a virtual environment that does not care where it is unpacked: the packages that the extra `pipeline`
needs, and a `bin/python` that points at the machine's own interpreter. Spark unpacks it beside each executor:

    --conf spark.archives=environment.tar.gz#environment --conf spark.pyspark.python=./environment/bin/python

Python must be installed at the same place on every machine, in the same version as here.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import typer

from purgatory_pipeline.errors import PackingFailed

ROOT: Final = "purgatory-waits"
EXTRA: Final = "pipeline"
SPARKS_OWN: Final = ("pyspark", "py4j")
"""Every Spark has these on its path."""
OUR_MODULES: Final = ("purgatory", "purgatory_client", "purgatory_pipeline", "purgatory_engine__mypyc")

_NAME: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]*")
_SKIPPED: Final = ("__pycache__", ".pyc", "tests", "include")
"""Parts of paths that nobody needs there."""


def pack(
    out: Annotated[Path, typer.Argument(metavar="FILE.tar.gz", help="Where the archive goes.")],
    without: Annotated[
        list[str] | None, typer.Option(metavar="PACKAGE", help="Left out, with what only it needs; may be repeated.")
    ] = None,
) -> None:
    """Packs this environment for --archives, so that executors need Spark and Python only."""
    packages = write_environment(out, without or [])
    size = out.stat().st_size / 1e6
    print(f"{out}: {len(packages)} packages, {size:,.1f} MB ({', '.join(packages)})")
    print(f"use it with --conf spark.archives={out}#environment --conf {_PYTHON_SETTING}")


_PYTHON_SETTING: Final = "spark.pyspark.python=./environment/bin/python"


def write_environment(out: Path, without: Iterable[str] = ()) -> list[str]:
    """Writes the archive; gives the names of the packages in it. Raises `PackingFailed`."""
    left_out = {canonical(name) for name in (*SPARKS_OWN, *without)}
    packages = needed(ROOT, EXTRA, left_out)
    site = f"lib/python{sysconfig.get_python_version()}/site-packages"
    try:
        with tarfile.open(out, "w:gz", compresslevel=1) as archive:
            _add_interpreter(archive)
            for source, target in [*our_files(), *(file for name in packages for file in files_of(name))]:
                archive.add(source, f"{site}/{target}", recursive=False)
    except OSError as error:
        raise PackingFailed(f"cannot write {out}: {error.strerror or error}") from error
    return [ROOT, *packages]


def needed(package: str, extra: str, left_out: set[str]) -> list[str]:
    """What a package with an extra needs, whatever that needs in turn, sorted; what is left out counts for nothing."""
    found: set[str] = set()
    waiting = [(package, frozenset([extra]))]
    while waiting:
        name, extras = waiting.pop()
        for requirement in _requirements(name, extras):
            if requirement not in found | left_out | {package}:
                found.add(requirement)
                waiting.append((requirement, frozenset()))
    return sorted(found)


def canonical(name: str) -> str:
    """A package's name as indexes write it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def files_of(package: str) -> Iterator[tuple[Path, PurePosixPath]]:
    """(file, its place below site-packages) of an installed package, as its installer wrote them down."""
    for file in metadata.distribution(package).files or []:
        path = Path(str(file.locate()))
        if ".." not in file.parts and path.is_file() and not _is_skipped(file.parts[1:]):
            yield path, PurePosixPath(file)


def our_files() -> Iterator[tuple[Path, PurePosixPath]]:
    """The same of our own packages: where they are imported from, installed or in a working tree."""
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
            inside = path.relative_to(folder.parent)
            if path.is_file() and not _is_skipped(inside.parts):
                yield path, PurePosixPath(inside)
    yield from _our_metadata()


def _our_metadata() -> Iterator[tuple[Path, PurePosixPath]]:
    """So that the packed environment knows its versions too."""
    for file in metadata.distribution(ROOT).files or []:
        if file.parts[0].endswith(".dist-info") and file.name == "METADATA":
            yield Path(str(file.locate())), PurePosixPath(file)


def _requirements(package: str, extras: frozenset[str]) -> Iterator[str]:
    """Names that a package requires here: plain ones, and those of these extras."""
    try:
        lines = metadata.requires(package) or []
    except metadata.PackageNotFoundError:
        return  # for another platform or Python, which is why it is not here
    for line in lines:
        requirement, _, marker = line.partition(";")
        wanted = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", marker)
        name = _NAME.match(requirement.strip())
        if name is not None and (wanted is None or wanted[1] in extras) and _is_installed(name[0]):
            yield canonical(name[0])


def _is_installed(package: str) -> bool:
    """What a marker asks for another platform or Python is not there."""
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _is_skipped(parts: Iterable[str]) -> bool:
    return any(part in _SKIPPED or part.endswith(".pyc") for part in parts)


def _add_interpreter(archive: tarfile.TarFile) -> None:
    """What makes a folder a virtual environment."""
    python = os.path.realpath(sys.executable)
    link = tarfile.TarInfo("bin/python")
    link.type, link.linkname = tarfile.SYMTYPE, python
    archive.addfile(link)
    text = f"home = {Path(python).parent}\ninclude-system-site-packages = false\n".encode()
    settings = tarfile.TarInfo("pyvenv.cfg")
    settings.size = len(text)
    archive.addfile(settings, io.BytesIO(text))
