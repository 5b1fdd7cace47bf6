"""The clients in Go, Java and TypeScript, installed from packages into empty projects, without buf: generated code
is included. Each project's program is the client's example, with the imports that a user of the package writes.

The builds of a release: cibuildwheel accepts its settings, and the public workflow runs existing commands.

`.ci/check-wheel` builds the wheel for this machine, labels it for other Linux systems, installs it and serves by uvx.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Final

import pytest
import yaml

import purgatory
from tests.kit.daemon import DaemonProcess
from tests.kit.programs import run_program
from tests.strangers.client_builds import (
    BUILT,
    CLIENTS,
    MAVEN_REPOSITORY,
    PACKAGES,
    go_tool,
    is_new,
    keep,
    require,
    run_tool,
    tool_path,
)
from tests.strangers.test_clients import BUILDS, advance, as_expected, expected_lines

ROOT: Final = Path(__file__).resolve().parents[2]
GO_MODULE: Final = "purgatory.example/client"
POM = Path(__file__).with_name("pom.xml").read_text("utf-8")
DEPENDENCIES = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def go_proxy(version: str) -> tuple[Path, str]:
    """A module proxy with the module as Go would fetch it from the repository, and the version there.

    Go keeps each version that it has seen: this one is named after its content.
    """
    files = {path.relative_to(CLIENTS / "go"): path.read_bytes() for path in sorted((CLIENTS / "go").rglob("*.*"))}
    content = hashlib.sha256(b"".join(bytes(path) + text for path, text in files.items())).hexdigest()
    named = f"v{version}-test{content[:12]}"
    folder = PACKAGES / "go" / GO_MODULE / "@v"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{named}.info").write_text(json.dumps({"Version": named}))
    (folder / f"{named}.mod").write_bytes(files[Path("go.mod")])
    with zipfile.ZipFile(folder / f"{named}.zip", "w") as module:
        for path, text in files.items():
            module.writestr(f"{GO_MODULE}@{named}/{path.as_posix()}", text)
    return PACKAGES / "go", named


def go_environment(proxy: Path) -> dict[str, str]:
    """Settings with which Go looks into a folder first, and accepts modules that no public checksum database knows."""
    usual = run_program(["go", "env", "GOPROXY"], env={**os.environ, "PATH": tool_path()}).stdout.strip()
    return {"GOPROXY": f"{proxy.as_uri()},{usual}", "GONOSUMDB": GO_MODULE, "GOFLAGS": "-mod=mod"}


def make_go_project(folder: Path) -> None:
    proxy, version = go_proxy(purgatory.__version__)
    (folder / "main.go").write_text((CLIENTS / "go/cmd/resume/main.go").read_text("utf-8"), "utf-8")
    for command in (["mod", "init", "first"], ["get", f"purgatory.example/client@{version}"], ["build", "-o", "first"]):
        run_tool("GO", ["go", *command], folder, go_environment(proxy))


def make_java_project(folder: Path) -> None:
    [version] = re.findall(r"\n  <version>(.*)<", (CLIENTS / "java/pom.xml").read_text("utf-8"))
    (folder / "pom.xml").write_text(POM.format(repository=MAVEN_REPOSITORY.as_uri(), version=version), "utf-8")
    program = (CLIENTS / "java/src/main/java/purgatory/client/Resume.java").read_text("utf-8")
    sources = folder / "src" / "main" / "java"
    sources.mkdir(parents=True)
    (sources / "Resume.java").write_text(program.replace("package purgatory.client;", "import purgatory.client.*;"))
    run_tool("JAVA", ["mvn", "-q", "-B", "-U", "compile", DEPENDENCIES, "-DoutputDirectory=lib"], folder)


def make_npm_project(folder: Path) -> None:
    package = PACKAGES / f"purgatory-client-{purgatory.__version__}.tgz"
    (folder / "package.json").write_text(json.dumps({"type": "module", "private": True}))
    run_tool("NODE", ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", str(package)], folder)
    program = (CLIENTS / "typescript/src/resume.ts").read_text("utf-8")
    program = program.replace("./session.js", "purgatory-client")
    (folder / "main.ts").write_text(re.sub(r"\./gen/purgatory/(v1/\w+)\.js", r"purgatory-client/\1", program), "utf-8")
    tools = CLIENTS / "typescript" / "node_modules"
    options = ["--module", "NodeNext", "--target", "ES2022", "--strict", "--skipLibCheck", "--types", "node"]
    compiler = ["node", str(tools / "typescript/bin/tsc"), *options, "--typeRoots", str(tools / "@types"), "main.ts"]
    run_tool("NODE", compiler, folder)


PROJECTS: Final = {
    "go": (make_go_project, "{}/first"),
    "java": (
        make_java_project,
        "java -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -cp {0}/target/classes:{0}/lib/* Resume",
    ),
    "typescript": (make_npm_project, "node {}/main.js"),
}
"""The function that makes a project, and the command of its program."""


def project_command(language: str) -> list[str]:
    """The command of a project, which is made again when its package or this file has changed."""
    make, command = PROJECTS[language]
    BUILDS[language]()
    folder, name = BUILT / "projects" / language, f"{language}-project"
    if is_new(name, language, folder, Path(__file__)):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        make(folder)
        keep(name)
    return [word.format(folder) for word in command.split()]


@pytest.mark.slow  # compilers
@pytest.mark.xdist_group("strangers")
@pytest.mark.parametrize("language", PROJECTS)
def test_a_package_is_all_that_an_empty_project_needs(
    language: str, shared_daemon: DaemonProcess, tmp_path: Path
) -> None:
    """The project compiles against the package, and its three waits are answered by the real daemon."""
    BUILT.mkdir(parents=True, exist_ok=True)
    command = [*project_command(language), shared_daemon.address, tmp_path.name, "3"]
    advance(shared_daemon, tmp_path.name, 3)
    ran = run_program(command, timeout_s=120)
    assert as_expected([line.split() for line in ran.stdout.splitlines()]) == expected_lines(3)


VERSIONS: Final = {
    "CHANGELOG.md": r"(?s)\A.*?\n## \[([^]]+)\] - (?:unreleased|\d{4}-\d\d-\d\d)\n",
    "client/go/README.md": r"go get \S+@v(\S+)\n",
    "client/java/pom.xml": r"\n  <version>(.*?)(?:-SNAPSHOT)?</",
    "client/typescript/package.json": r'\n  "version": "(.*)"',
    "client/typescript/package-lock.json": r'"name": "purgatory-client",\s+"version": "(.*)"',
    "deploy/helm/purgatory/Chart.yaml": r"\n(?:version|appVersion): (.*)",
}
"""Files with a version of their own, and where it is. Others read `purgatory.__version__`."""


@pytest.mark.parametrize("name", VERSIONS)
def test_every_package_has_the_version_of_the_release(name: str) -> None:
    found = re.findall(VERSIONS[name], (ROOT / name).read_text("utf-8"))
    assert set(found) == {purgatory.__version__}


def test_artifact_is_a_snapshot_until_the_release_has_a_date() -> None:
    dated = "] - unreleased" not in (ROOT / "CHANGELOG.md").read_text("utf-8")
    assert dated == ("-SNAPSHOT</version>" not in (CLIENTS / "java/pom.xml").read_text("utf-8"))


@pytest.mark.xdist_group("strangers")
def test_the_generated_code_of_the_go_module_is_current(tmp_path: Path) -> None:
    """The committed files in client/go/gen equal the output of buf for the contract. If not: `go generate` there."""
    require("GO", "go")
    run_tool("GO", ["buf", "generate", "-o", str(tmp_path)], CLIENTS / "go")
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / "gen/purgatory/v1").iterdir()}
    committed = {path.name: path.read_text("utf-8") for path in (CLIENTS / "go/gen/purgatory/v1").iterdir()}
    assert made == committed


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8"))
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    ("platform", "systems"), [("linux", {"manylinux_x86_64", "musllinux_x86_64"}), ("macos", {"macosx_arm64"})]
)
def test_cibuildwheel_builds_for_each_system_and_python(platform: str, systems: set[str]) -> None:
    """On a machine of the platform there is a wheel for each supported Python, for glibc, musl and macOS."""
    command = [sys.executable, "-m", "cibuildwheel", "--platform", platform, "--print-build-identifiers"]
    command += ["--archs", "arm64" if platform == "macos" else "x86_64"]
    made = run_program(command, cwd=ROOT).stdout.split()
    assert {tuple(one.split("-")) for one in made} == {
        (python, system) for python in ("cp311", "cp312", "cp313", "cp314") for system in systems
    }


def test_classifiers_name_each_python_that_wheels_are_built_for() -> None:
    named = re.findall(r"Python :: 3\.(\d+)", " ".join(PROJECT["project"]["classifiers"]))
    assert [f"cp3{minor}-*" for minor in named] == PROJECT["tool"]["cibuildwheel"]["build"]


def test_a_command_has_the_name_of_the_distribution() -> None:
    """`uvx NAME` and `pipx run NAME` look for a command with the distribution's name."""
    scripts = PROJECT["project"]["scripts"]
    assert scripts[PROJECT["project"]["name"]] == scripts["purgatory"]


def test_the_workflow_runs_what_there_is() -> None:
    """Each step runs an existing target or script, and wheels are built with the version that is tested here."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = [line.split() for step in STEPS for line in step.get("run", "").splitlines()]
    assert {words[1] for words in commands if words[0] == "make"} <= targets
    assert all((ROOT / words[0]).exists() for words in commands if words[0].startswith("."))
    [tested] = re.findall(r"^cibuildwheel==(.*)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert f"pypa/cibuildwheel@v{tested}" in {step.get("uses") for step in STEPS}


@pytest.mark.slow  # Go compiles the checker
@pytest.mark.xdist_group("strangers")
def test_workflow_is_valid_for_actionlint() -> None:
    BUILT.mkdir(parents=True, exist_ok=True)
    command = [go_tool("github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"), str(ROOT / ".github/workflows/ci.yml")]
    run_program(command)
