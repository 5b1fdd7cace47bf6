"""The daemon's command line: a flag for every setting, `--help` that explains each, and `--print-config`.

All of it is derived from the fields of `settings`: a new setting needs no change here.
"""

import argparse
import json
import re
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from purgatory import __version__
from purgatory.service.setting_sources import (
    Values,
    environment_name,
    flag_name,
    is_secret,
    load_settings,
    setting_extra,
    setting_groups,
    source_of,
)
from purgatory.service.settings import Settings

DESCRIPTION: Final = "Purgatory: waits as a service. Serves gRPC until SIGTERM or SIGINT."
EPILOG: Final = (
    "Flags win over the environment, the environment over the file, the file over the defaults. In the file, "
    "engine.tick_ms is key tick_ms of table [engine]."
)

SECRET_PARTS: Final = re.compile(r'(?<=://)[^/?"]*@|(?<=\?)[^"]+')
"""In the JSON text of addresses: a user and password, and the options."""


class CommandLine(NamedTuple):
    """The settings in force, those given as flags, and whether --print-config was given."""

    settings: Settings
    flags: Values
    print_config: bool


def read_command_line(arguments: Sequence[str] | None, program: str, known: type[Settings] = Settings) -> CommandLine:
    """Read the `known` settings from flags (None: those of the process), environment and file.

    Raises `SettingsError` for an unusable value, SystemExit for --help, --version and unknown flags.
    """
    given = vars(flag_parser(program, known).parse_args(arguments))
    print_config = bool(given.pop("print_config"))
    flags: Values = {}
    for name, value in given.items():
        part, _, field = name.partition(".")
        if field:
            flags.setdefault(part, {})[field] = value
        else:
            flags[name] = value
    return CommandLine(load_settings(flags, known), flags, print_config)


def config_lines(command_line: CommandLine) -> list[str]:
    """Return the settings in force as a TOML file, with their sources. A value that may be a secret is in a comment."""
    settings, flags, _ = command_line
    lines: list[str] = []
    known = type(settings)

    def add(name: str, value: object) -> None:
        text, source = json.dumps(value, default=str), source_of(name, flags, settings)
        field = name.rpartition(".")[2]
        if is_secret(name, known) and SECRET_PARTS.search(text):
            lines.append(f"# {field} = {SECRET_PARTS.sub('***', text)}  # {source}, not shown in full")
        elif value is not None:  # TOML has no null
            lines.append(f"{field} = {text}  # {source}")

    groups = setting_groups(known)
    for name in known.model_fields:
        if name not in groups and name != "config":
            add(name, getattr(settings, name))
    lines.append("")
    for part in groups:
        lines.append(f"[{part}]")
        for field, value in getattr(settings, part):
            add(f"{part}.{field}", value)
        lines.append("")
    return lines[:-1]


def flag_parser(program: str, known: type[Settings]) -> argparse.ArgumentParser:
    """The parser of the flags of the `known` settings."""
    parser = argparse.ArgumentParser(program, description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"purgatory {__version__}")
    parser.add_argument("--print-config", action="store_true", help="Print each setting with its source, and exit.")
    models = setting_groups(known)
    for name, field in known.model_fields.items():
        if name not in models:
            _add_flag(parser, name, field)
    for part, model in models.items():
        group = parser.add_argument_group((model.__doc__ or "").rstrip("."))
        for name, field in model.model_fields.items():
            _add_flag(group, f"{part}.{name}", field)
    return parser


def _add_flag(parser: argparse._ActionsContainer, name: str, field: FieldInfo) -> None:
    """Add a flag for one setting. Values stay text here; the settings check and convert them."""
    default = "none" if field.default in {None, ()} else json.dumps(field.default).strip('"')
    text = f"{field.description} (default: {default}; environment: {environment_name(name)})"
    details: dict[str, Any] = {"dest": name, "default": argparse.SUPPRESS, "help": text.replace("%", "%%")}
    if field.annotation is bool:
        details["action"] = argparse.BooleanOptionalAction
    elif get_origin(field.annotation) is Literal:
        details["metavar"] = "|".join(get_args(field.annotation))
    else:
        details["metavar"] = name.rpartition(".")[2].rpartition("_")[2].upper()
    if isinstance(field.default, tuple):
        details |= {"action": "append", "metavar": "URI"}
    short_flag = setting_extra(field)["short_flag"]
    parser.add_argument(*[short_flag] * bool(short_flag), flag_name(name), **details)
