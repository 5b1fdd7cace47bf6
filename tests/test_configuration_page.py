"""docs/configuration.md is generated from the settings by `make docs`, and this test keeps it current."""

import json
from pathlib import Path

from purgatory.extensions.installed import ALL_SETTINGS
from purgatory.service.setting_sources import setting_groups

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

Written from the daemon's settings by `make docs`; `purgatory serve --help` says the same.

Every setting has one name in three spellings: `engine.tick_ms` is key `tick_ms` of table `[engine]` in the file
(`--config FILE`, TOML), `PURGATORY_ENGINE_TICK_MS` in the environment, and `--engine-tick-ms` as a flag. Flags win over
the environment, the environment over the file, the file over the defaults. `purgatory serve --print-config` prints what
is in force and where each value came from. An unknown key of the file is refused, an unknown variable is logged; both
name the closest setting.

In a container the image sets `PURGATORY_GRPC_ADDRESS=0.0.0.0:7440` and `PURGATORY_HTTP_ADDRESS=0.0.0.0:7441`; it serves
there with TLS and a policy only, or with `PURGATORY_INSECURE=true` ([security.md](security.md)).
"""


def setting_row(name: str, description: str | None, default: object) -> str:
    shown = "none" if default in {None, ()} else json.dumps(default)
    return f"| `{name}` | `{shown}` | {description} |"


def configuration_page() -> str:
    """The page: a table for the settings without a group, and one for each group."""
    groups = setting_groups(ALL_SETTINGS)
    lines = [HEAD, "| setting | default | what it does |", "|---|---|---|"]
    for name, field in ALL_SETTINGS.model_fields.items():
        if name not in groups:
            lines.append(setting_row(name, field.description, field.default))
    for group, model in groups.items():
        lines += ["", f"## `{group}`", (model.__doc__ or "").strip(), ""]
        lines += ["| setting | default | what it does |", "|---|---|---|"]
        for name, field in model.model_fields.items():
            lines.append(setting_row(f"{group}.{name}", field.description, field.default))
    return "\n".join(lines) + "\n"


def test_configuration_page_is_current() -> None:
    """The page matches the settings; `make docs` rewrites it."""
    assert PAGE.read_text(encoding="utf-8") == configuration_page()


def test_every_setting_has_a_description() -> None:
    assert "| None |" not in configuration_page()


if __name__ == "__main__":
    PAGE.write_text(configuration_page(), encoding="utf-8")
