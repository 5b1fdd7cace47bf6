"""The clients of the last release in Go, Java and TypeScript, installed from its packages by the tools of their
languages, which fetch what the packages depend on. Each has the program `resume` of its release.
"""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.compatibility import RELEASED
from tests.strangers.client_builds import BUILT, QUICK_JAVA, require, run_tool

CLIENTS: Final = "clients"
"""The folder of the packages among the fixtures. For Go it is a proxy."""
GO_MODULE: Final = "purgatory.example/client"
PACKAGES: Final = RELEASED / CLIENTS


def last_go() -> list[str]:
    require("GO", "go")
    return [str(installed(_install_go) / "resume")]


def last_java() -> list[str]:
    require("JAVA", "javac", "mvn")
    folder = installed(_install_java)
    return [*QUICK_JAVA, "-cp", os.pathsep.join([str(folder), f"{folder}/*"]), "purgatory.client.Resume"]


def last_typescript() -> list[str]:
    require("NODE", "node", "npm")
    return ["node", str(installed(_install_typescript) / "node_modules/purgatory-client/dist/resume.js")]


def _install_go(folder: Path) -> None:
    """Go takes the module from the fixtures, and others from its cache or else from its proxy."""
    [module] = PACKAGES.glob(f"{GO_MODULE}/@v/*.zip")
    cache, proxies = run_tool("GO", ["go", "env", "GOMODCACHE", "GOPROXY"], folder).split()
    sources = [PACKAGES.as_uri(), f"{Path(cache).as_uri()}/cache/download", proxies]
    environment = {"GOPROXY": ",".join(sources), "GONOSUMDB": GO_MODULE, "GOMODCACHE": f"{folder}/modules"}
    environment |= {"GOBIN": str(folder), "GOFLAGS": "-modcacherw -trimpath"}
    run_tool("GO", ["go", "install", f"{GO_MODULE}/cmd/resume@{module.stem}"], folder, environment)


def _install_java(folder: Path) -> None:
    [jar] = PACKAGES.glob("*.jar")
    shutil.copy(jar, folder)
    fetch = ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    run_tool("JAVA", ["mvn", "-q", "-B", "-f", str(PACKAGES / "pom.xml"), *fetch], folder)
    run_tool("JAVA", ["javac", "-cp", f"{folder}/*", "-d", str(folder), str(PACKAGES / "Resume.java")], folder)


def _install_typescript(folder: Path) -> None:
    [package] = PACKAGES.glob("*.tgz")
    run_tool("NODE", ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", str(package)], folder)
    shutil.copy(PACKAGES / "resume.js", folder / "node_modules/purgatory-client/dist")


def installed(install: Callable[[Path], None]) -> Path:
    """The folder that this function has filled from the packages, now or before."""
    found = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(filter(Path.is_file, PACKAGES.rglob("*"))):
        found.update(path.read_bytes())
    folder = BUILT / "last" / found.hexdigest()[:16] / install.__name__
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        install(folder)
        (folder / "whole").touch()
    return folder


RELEASED_CLIENTS: Final = {"go": last_go, "java": last_java, "typescript": last_typescript}
"""Functions that return the command of `resume`. The test is skipped, or fails, where tools are missing."""
