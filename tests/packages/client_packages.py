"""Packages of the clients, made as a release makes them, and put where the tools of their languages find them."""

import hashlib
import json
import os
import zipfile
from pathlib import Path
from typing import Final

from tests.kit.programs import run_program
from tests.strangers.client_builds import CLIENTS, PACKAGES, tool_path

GO_MODULE: Final = "purgatory.example/client"


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
