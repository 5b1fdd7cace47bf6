"""Every script on the engine and the oracle: they agree, and the output is as recorded."""

from typing import Final

import pytest

from tests.scripts.engine_level import EngineLevel
from tests.scripts.language import all_scripts

SCRIPTS: Final = {name: script for name, script in all_scripts().items() if not EngineLevel.unsupported(script)}


@pytest.mark.parametrize("name", SCRIPTS)
def test_script(name: str) -> None:
    """Engine and oracle agree after every line."""
    assert EngineLevel().run(SCRIPTS[name]) == SCRIPTS[name].lines
