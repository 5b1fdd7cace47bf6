"""Loads settings from flags, environment and file, determines the source of each value, and explains invalid values.

Nothing outside this file and `settings` reads the environment.
"""

import os
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from purgatory.service.settings import ENVIRONMENT_PREFIX, Settings, SettingsGroup
from purgatory.service.transport.watched_file import read_regular_file

OTHER_VARIABLES: Final = re.compile(
    "PURGATORY_("
    "ADDRESS|HTTP_URL|TLS_CA|TLS_CERTIFICATE|TLS_KEY|TOKEN_FILE|TARGET|STATE_DIR|COMPLETE|TRACEBACK"  # other commands
    "|(KAFKA|POSTGRES|MYSQL|REDIS|POLL|SOURCE)_.+"  # sources
    "|PORT|(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_[0-9]+_.+)"  # Kubernetes, for services named purgatory
    "|BUILD|CHROMIUM|REAL_DATA|(REQUIRE|TEST)_.+"  # the project's own build and tests
    ")"
)
"""Variables of others, which may run with the daemon's environment."""

CLOSE_MATCH: Final = 0.8
"""Similarity from which a name is suggested for an unknown one; all variables share a prefix."""

_GROUP_EXPECTED: Final = "is a group of settings; set each of them by its own name"

Values = dict[str, Any]
"""Values of one source, nested: {"engine": {"tick_ms": 1}}."""


class SettingsError(Exception):
    """A setting is unusable. The message is one line and names the setting, the value and its source."""


def setting_groups(known: type[Settings]) -> dict[str, type[SettingsGroup]]:
    """Return the groups by name, in the order of their declaration."""
    found: dict[str, type[SettingsGroup]] = {}
    for name, field in known.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, SettingsGroup):
            found[name] = field.annotation
    return found


def setting_names(known: type[Settings]) -> list[str]:
    """Return every setting by its name in the file: 'config', 'ready_file', 'grpc.address', ..."""
    groups = setting_groups(known)
    names = [name for name in known.model_fields if name not in groups]
    return names + [f"{group}.{field}" for group, model in groups.items() for field in model.model_fields]


def setting_extra(field: FieldInfo) -> Values:
    """Return what `setting` stored with a field."""
    assert isinstance(field.json_schema_extra, dict), f"not declared with `setting`: {field}"
    return field.json_schema_extra


def is_secret(name: str, known: type[Settings]) -> bool:
    """Whether the value of a setting must not be shown."""
    group, _, field = name.rpartition(".")
    return bool(setting_extra((setting_groups(known)[group] if group else known).model_fields[field])["is_secret"])


def environment_name(name: str) -> str:
    """'engine.tick_ms' -> 'PURGATORY_ENGINE_TICK_MS'."""
    return ENVIRONMENT_PREFIX + name.replace(".", "_").upper()


def flag_name(name: str) -> str:
    """'engine.tick_ms' -> '--engine-tick-ms'."""
    return "--" + name.replace(".", "-").replace("_", "-")


def load_settings(flags: Values, known: type[Settings] = Settings) -> Settings:
    """Load the `known` settings from flags, environment and file. Raises `SettingsError` if one is unusable."""
    path = flags.get("config") or os.environ.get(environment_name("config"))
    # Before the values are validated: pydantic ignores unknown names, so a misspelt one would silently have its
    # default.
    if path:
        _check_file(Path(path), known)
    for group in setting_groups(known):
        if os.environ.get(environment_name(group)):
            raise SettingsError(f"{group}: {_GROUP_EXPECTED} (environment {environment_name(group)})")
    try:
        return known(**flags)
    except ValidationError as error:
        raise SettingsError("; ".join(_explained(dict(fault), flags, known) for fault in error.errors())) from None


def source_of(name: str, flags: Values, settings: Settings) -> str:
    """Return the source of a setting's value: its flag, its environment variable, the file, or 'default'."""
    in_file = settings.config is not None and _contains(tomllib.loads(settings.config.read_text("utf-8")), name)
    return _flag_or_variable(name, flags) or (f"file {settings.config}" if in_file else "default")


def _flag_or_variable(name: str, flags: Values) -> str | None:
    if _contains(flags, name):
        return f"flag {flag_name(name)}"
    return f"environment {environment_name(name)}" if os.environ.get(environment_name(name)) else None


def unknown_variables(known: type[Settings]) -> list[str]:
    """Explain each environment variable that looks like a setting and is none: it is misspelt or was removed."""
    variables = {environment_name(name) for name in setting_names(known)}
    ours = sorted(name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX) and name not in variables)
    return [_no_such(name, variables) for name in ours if not OTHER_VARIABLES.fullmatch(name)]


def _no_such(name: str, known: set[str]) -> str:
    """Explain that there is no such setting; the closest known name, if one is close, follows."""
    closest = get_close_matches(name, known, 1, CLOSE_MATCH)
    return f"{name}: there is no such setting" + (f"; did you mean {closest[0]}?" if closest else "")


def _check_file(path: Path, known: type[Settings]) -> None:
    """Raise `SettingsError` unless the file can be read and contains only settings."""
    try:
        tables = tomllib.loads(read_regular_file(path).decode())
    except (OSError, ValueError) as error:  # ValueError: also a number of more than 4,300 digits
        raise SettingsError(f"config: cannot read {path}: {error}") from None
    names = set(setting_names(known)) - {"config"}
    for table, content in tables.items():
        if table in setting_groups(known) and not isinstance(content, dict):
            raise SettingsError(f"{table}: {_GROUP_EXPECTED}, in a table [{table}] (in {path})")
        keys = [f"{table}.{key}" for key in content] if isinstance(content, dict) else [table]
        for key in keys:
            if key not in names:
                raise SettingsError(f"{_no_such(key, names)} (in {path})")


def _contains(values: Values, name: str) -> bool:
    group, _, field = name.partition(".")
    inner = values.get(group)
    return group in values if not field else isinstance(inner, dict) and field in inner


def _explained(fault: Values, flags: Values, known: type[Settings]) -> str:
    """Format an error of pydantic as 'engine.tick_ms: must be ..., not 0 (environment PURGATORY_ENGINE_TICK_MS)'."""
    name = ".".join(str(step) for step in fault["loc"])
    message = str(fault["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    if name not in setting_names(known):
        return f"{name}: {message}" if name else message
    given = "" if is_secret(name, known) else f", not {fault['input']!r}"
    return f"{name}: {message}{given} ({_flag_or_variable(name, flags) or 'file'})"
