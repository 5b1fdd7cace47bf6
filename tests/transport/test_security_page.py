"""The ten-minute tutorial of docs/security.md works as written."""

import re
import shlex
from pathlib import Path

import pytest

from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.service.setting_sources import setting_names
from tests.docs.pages import ROOT, shell, texts
from tests.kit.daemon import ServeDaemon

PAGE = ROOT / "docs" / "security.md"


def run(script: str, folder: Path, address: str = "") -> str:
    """Run the commands and return their output. The daemon of `purgatory` is the one at `address`."""
    done = shell(f"set -eu\n{script}", folder, {"PURGATORY_ADDRESS": address})
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow  # seven commands, each a new Python
def test_tutorial_of_the_security_page_works_as_written(
    serve_daemon: ServeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made, served, called, certificates = texts("docs/security.md", "sh")
    assert run(made, tmp_path).endswith("yes\n")
    words = shlex.split(served.replace("\\\n", " "), comments=True)
    assert words[:2] == ["purgatory", "serve"]
    daemon = serve_daemon(*words[2:])
    answers = run(called, tmp_path, daemon.address)
    assert "satisfied" in answers
    assert answers.endswith("refused: exit code 17\n")
    [new_key] = re.findall(r"^new_key=.*\n", made, re.MULTILINE)
    run(new_key + certificates, tmp_path)
    assert (tmp_path / "billing.crt").exists()


def test_settings_on_the_page_exist() -> None:
    groups = {name.partition(".")[0] for name in setting_names(ALL_SETTINGS) if "." in name}
    named = set(re.findall(r"`([a-z]+\.[a-z_]+)", PAGE.read_text("utf-8")))
    settings = {name for name in named if name.partition(".")[0] in groups and not name.endswith((".crt", ".key"))}
    assert len(settings) > 20
    assert settings <= set(setting_names(ALL_SETTINGS))


def test_every_limit_is_on_the_page() -> None:
    bounds = {
        name
        for name in setting_names(ALL_SETTINGS)
        if name.startswith(("limits.", "shares.")) or name.endswith("s_max")
    }
    page = PAGE.read_text("utf-8")
    assert len(bounds) > 15
    assert {name for name in bounds if f"`{name}`" not in page} == set()
