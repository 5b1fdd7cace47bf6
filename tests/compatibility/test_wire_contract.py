"""The wire compared with the protos of the last release: removing, renumbering or retyping would break old clients.

protos.binpb.gz among the fixtures is the output of `buf build` for them.
"""

import shutil
import sys
from pathlib import Path
from typing import Final

import pytest
from purgatory_client import views
from purgatory_client.results import OperationKind, Outcome

from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1 import source_pb2
from tests.compatibility import RELEASED
from tests.kit.programs import run_program

ROOT: Final = Path(__file__).resolve().parents[2]
BUF: Final = str(Path(sys.executable).with_name("buf"))


def breaking_changes(folder: Path) -> str:
    """The output of `buf breaking` for the protos in a folder; empty if clients of the last release still work."""
    command = [BUF, "breaking", "--against", str(RELEASED / "protos.binpb.gz")]
    ran = run_program(command, code=None, cwd=folder)
    assert ran.returncode in {0, 100}, ran.stderr  # 100: there are breaking changes
    return ran.stdout


@pytest.mark.slow  # a program that compiles the protos
def test_protos_break_no_client_of_the_last_release() -> None:
    """Add fields, values and calls; reserve the numbers and names of removed ones (docs/compatibility.md)."""
    assert not breaking_changes(ROOT)


@pytest.mark.slow  # as above
@pytest.mark.parametrize(
    ("file", "before", "after", "complaint"),
    [
        ("event", "int64 log_end_offset = 1;", "int64 log_end_offset = 99;", 'Previously present field "1"'),
        ("operation", "int64 timeout_ms = 2;", "int32 timeout_ms = 2;", 'changed type from "int64" to "int32"'),
        ("result", "OUTCOME_EXPIRED = 3;", "", 'Previously present enum value "3"'),
        ("fleet_log", "int32 format = 1;", "", 'Previously present field "1" with name "format"'),
        ("purgatory_service", "rpc GetStatus(", "rpc Status(", 'Previously present RPC "GetStatus"'),
    ],
)
def test_a_breaking_change_of_a_proto_is_noticed(
    file: str, before: str, after: str, complaint: str, tmp_path: Path
) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    shutil.copy(ROOT / "buf.yaml", tmp_path)
    path = tmp_path / "proto" / "purgatory" / "v1" / f"{file}.proto"
    text = path.read_text("utf-8")
    assert before in text
    path.write_text(text.replace(before, after, 1), "utf-8")
    assert complaint in breaking_changes(tmp_path)


def test_values_that_later_daemons_add_are_shown_by_their_numbers() -> None:
    """The conformance test has this for results, in all clients."""
    status = wire.GetStatusResponse(sources=[source_pb2.SourceStatus(name="s", state=99)])
    [source] = views.status(status).sources
    assert (source.state, Outcome(99).name, OperationKind(99)) == ("unknown_99", "UNKNOWN_99", 99)
