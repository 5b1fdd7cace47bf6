"""The complete programs in docs/grpc.md are files of the clients, and print what the page says."""

import json
import re
import subprocess

import pytest

from tests.kit.daemon import DaemonProcess
from tests.strangers.client_builds import CLIENTS, ROOT, build_go, build_java, build_typescript

PAGE = (ROOT / "docs" / "grpc.md").read_text("utf-8")
PROGRAMS = {
    "go": (CLIENTS / "go/cmd/once/main.go", build_go, "OUTCOME_SATISFIED 42\n"),
    "java": (CLIENTS / "java/src/main/java/purgatory/client/Once.java", build_java, "OUTCOME_SATISFIED 42\n"),
    "ts": (CLIENTS / "typescript/src/once.ts", build_typescript, "SATISFIED 42\n"),
}


@pytest.mark.parametrize("language", PROGRAMS)
def test_the_page_prints_the_file(language: str) -> None:
    [printed] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert printed == PROGRAMS[language][0].read_text("utf-8")


@pytest.mark.xdist_group("strangers")
def test_it_waits_and_is_answered(shared_daemon: DaemonProcess) -> None:
    for _, build, printed in PROGRAMS.values():
        ran = subprocess.run(
            [*build("once"), shared_daemon.address], capture_output=True, text=True, check=False, timeout=60
        )
        assert (ran.stdout, ran.returncode) == (printed, 0), ran.stderr


def test_stated_versions_of_buf_and_node_are_the_tested_ones() -> None:
    [tested] = re.findall(r"^buf-bin==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    package = json.loads((CLIENTS / "typescript/package.json").read_text("utf-8"))
    assert package["devDependencies"]["@bufbuild/buf"] == tested
    assert f"buf/cmd/buf@v{tested} generate\n" in (CLIENTS / "go/session.go").read_text("utf-8")
    locked = json.loads((CLIENTS / "typescript/package-lock.json").read_text("utf-8"))["packages"].values()
    needed = max(float(one["engines"]["node"].removeprefix(">=")) for one in locked if "node" in one.get("engines", {}))
    assert package["engines"]["node"] == f">={needed:.0f}"
