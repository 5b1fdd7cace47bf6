"""The daemon's command line: a flag for every setting, `--help` that explains each, and `--print-config`.

All of it is derived from the fields of `settings`: a new setting needs no change here.
"""

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from purgatory import __version__
from purgatory.command_line import Command, Option, starting
from purgatory.service import setting_sources
from purgatory.service.settings import Settings

T = TypeVar("T")

EPILOG: Final = (
    "Flags win over the environment, the environment over the file, the file over the defaults. In the file, "
    "engine.tick_ms is key tick_ms of table [engine]."
)

SECRET_PARTS: Final = re.compile(r'(?<=://)[^/?"]*@|(?<=\?)[^"]+')
"""In the JSON text of addresses: a user and password, and the options."""


class CommandLine(NamedTuple):
    """The settings in force, and those given as flags."""

    settings: Settings
    flags: setting_sources.Values


def read_command_line(arguments: Sequence[str] | None, program: str, known: type[Settings] = Settings) -> CommandLine:
    """Read the `known` settings from flags (None: those of the process), environment and file.

    Raises `SettingsError` for an unusable value, `click.ClickException` for unknown flags.
    """
    command = flag_command(known, lambda flags, _: CommandLine(setting_sources.load_settings(flags, known), flags))
    return command.main(arguments, program, standalone_mode=False)  # type: ignore[no-any-return]  # Any, in click


def config_lines(command_line: CommandLine) -> list[str]:
    """Return the settings in force as a TOML file, with their sources. A value that may be a secret is in a comment."""
    settings, flags = command_line
    lines: list[str] = []
    known = type(settings)

    def add(name: str, value: object) -> None:
        text, source = json.dumps(value, default=str), setting_sources.source_of(name, flags, settings)
        field = name.rpartition(".")[2]
        if setting_sources.is_secret(name, known) and SECRET_PARTS.search(text):
            lines.append(f"# {field} = {SECRET_PARTS.sub('***', text)}  # {source}, not shown in full")
        elif value is not None:  # TOML has no null
            lines.append(f"{field} = {text}  # {source}")

    groups = setting_sources.setting_groups(known)
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


def flag_command(known: type[Settings], run: Callable[[setting_sources.Values, bool], T]) -> click.Command:
    """The command with a flag for each of the `known` settings.

    It calls `run` with the values of the given flags, which are not checked yet, and whether --print-config was given.
    """
    names = {name.replace(".", "_"): name for name in setting_sources.setting_names(known)}

    def callback(print_config: bool, **given: Any) -> T:  # noqa: ANN401 - as in click
        flags: setting_sources.Values = {}
        for flag, value in given.items():
            if value not in {None, ()}:
                group, _, field = names[flag].rpartition(".")
                (flags.setdefault(group, {}) if group else flags)[field] = value
        return run(flags, print_config)

    parameters: list[click.Parameter] = [
        click.Option(["--print-config"], is_flag=True, help="Print each setting with its source, and exit.")
    ]
    models = setting_sources.setting_groups(known)
    parameters += [_flag(name, field) for name, field in known.model_fields.items() if name not in models]
    for part, model in models.items():
        heading = (model.__doc__ or "").rstrip(".")
        parameters += [_flag(f"{part}.{name}", field, heading) for name, field in model.model_fields.items()]
    version = click.version_option(__version__, message="purgatory %(version)s")
    return version(Command("serve", callback=callback, params=parameters, epilog=EPILOG))


def _flag(name: str, field: FieldInfo, heading: str = "Options") -> click.Option:
    """The flag of one setting. Values stay text here; the settings check and convert them."""
    default = "none" if field.default in {None, ()} else json.dumps(field.default).strip('"')
    # The name of the variable is last: with a bracket behind it, the longest one would be broken in two lines.
    text = f"{field.description} (default: {default}) Environment: {setting_sources.environment_name(name)}"
    flag, short, details = (
        setting_sources.flag_name(name),
        setting_sources.setting_extra(field)["short_flag"],
        dict[str, Any](),
    )
    if field.annotation is bool:
        flag = f"{flag}/{flag.replace('--', '--no-', 1)}"
    elif get_origin(field.annotation) is Literal:
        words = get_args(field.annotation)
        details = {
            "metavar": "|".join(words),
            "shell_complete": lambda _context, _option, typed: starting(words, typed),
        }
    elif isinstance(field.default, tuple):
        details = {"metavar": "URI", "multiple": True}
    else:
        last = name.rpartition(".")[2].rpartition("_")[2].upper()
        details = {"metavar": last, "type": click.Path() if last in {"CONFIG", "DIR", "FILE"} else str}
    declared = [*[short] * bool(short), flag, name.replace(".", "_")]
    return Option(declared, heading=heading, default=None, show_default=False, help=text, **details)
