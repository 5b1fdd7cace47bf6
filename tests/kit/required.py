"""Tests that need a program which a machine may lack."""

import os
from typing import NoReturn

import pytest


def skip_unless_required(name: str, reason: object) -> NoReturn:
    """Skip the test, or fail it if the environment says PURGATORY_REQUIRE_<name>=1."""
    if os.environ.get(f"PURGATORY_REQUIRE_{name}") == "1":
        pytest.fail(f"PURGATORY_REQUIRE_{name}=1: {reason}")
    pytest.skip(str(reason))
