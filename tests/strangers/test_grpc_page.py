"""docs/grpc.md: its calls, and the commands of grpcurl, ghz and buf run against the real daemon."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator

import pytest
from google.protobuf import json_format
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.rpc.handlers import SERVICE
from tests.kit.daemon import DaemonProcess
from tests.strangers.client_builds import CLIENTS, ROOT, go_tool, tool_path

PAGE = (ROOT / "docs" / "grpc.md").read_text("utf-8")
EXAMPLES = re.findall(r"grpcurl -plaintext -d '([^']*)' \S+ purgatory\.v1\.PurgatoryService/(\w+)", PAGE)


def test_every_call_is_shown() -> None:
    assert {name for _, name in EXAMPLES} == {method.name for method in SERVICE.methods}


@pytest.mark.parametrize(("text", "name"), EXAMPLES, ids=[name for _, name in EXAMPLES])
def test_its_json_is_a_request_of_the_call(text: str, name: str) -> None:
    method = SERVICE.methods_by_name[name]
    decoder, rest, count = json.JSONDecoder(), text, 0
    while rest:
        message, end = decoder.raw_decode(rest)
        json_format.ParseDict(message, GetMessageClass(method.input_type)())
        rest, count = rest[end:].lstrip(), count + 1
    assert count == 1 or (method.client_streaming and count > 1)


def test_stated_versions_of_buf_and_node_are_the_tested_ones() -> None:
    [tested] = re.findall(r"^buf-bin==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    package = json.loads((CLIENTS / "typescript/package.json").read_text("utf-8"))
    assert package["devDependencies"]["@bufbuild/buf"] == tested
    assert f"buf/cmd/buf@v{tested} generate\n" in (CLIENTS / "go/session.go").read_text("utf-8")
    locked = json.loads((CLIENTS / "typescript/package-lock.json").read_text("utf-8"))["packages"].values()
    needed = max(float(one["engines"]["node"].removeprefix(">=")) for one in locked if "node" in one.get("engines", {}))
    assert package["engines"]["node"] == f">={needed:.0f}"


GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"
GHZ = "github.com/bojand/ghz/cmd/ghz@v0.121.0"
END_S = 30.0
SIGNS = {
    "list": "purgatory.v1.PurgatoryService",
    "describe": "rpc Wait (",
    "Wait": "OUTCOME_SATISFIED",
    "Register": '"accepted": 1',
    "GetOperation": '"required_offset": "10"',
    "ListOperations": '"required_offset": "10"',
    "GetPartition": '"high_watermark": "4"',
    "ListPartitions": '"high_watermark": "4"',
    "ListHotNames": '"watched": "1"',
    "GetStatus": '"remaining_time"',
    "HandOver": "FailedPrecondition",
    "StreamResults": "OUTCOME_CANCELLED",
    "Cancel": '"cancelled": "1"',
    "Session": "OUTCOME_EXPIRED",
    "AttachSource": '"demand"',
    "GetSourceEnds": "Code: Unavailable",
}
"""A text in the output of a call; other calls only print JSON."""
GO_ON = ("Wait", "StreamResults", "TailResults")
"""Calls that run until another call ends them, or forever."""


def printed(program: str, page: str = PAGE) -> list[str]:
    """The commands of the page that begin with `program`, in order."""
    blocks = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line.startswith(program + " ")]


def name_of(words: list[str]) -> str:
    """The called method, or the verb of a reflection query."""
    called = words[-1].rpartition("/")[2]
    return called if "/" in words[-1] else next(word for word in words if word in ("list", "describe"))


def read_until(process: subprocess.Popen[str], sign: str) -> str:
    """Read the output of a program until it contains a text."""
    text = ""
    assert process.stdout is not None
    while sign not in text and (line := process.stdout.readline()):
        text += line
    assert sign in text, text
    return text


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonProcess]:
    """One daemon for all tools."""
    with DaemonProcess(tmp_path_factory.mktemp("daemon")) as process:
        yield process


@pytest.fixture
def going_on() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """Running programs by the call that they make; killed at the end of the test."""
    started: dict[str, subprocess.Popen[str]] = {}
    yield started
    for process in started.values():
        process.kill()
        process.communicate()


@pytest.mark.xdist_group("strangers")
def test_each_grpcurl_call_of_the_page_runs_in_its_order(
    daemon: DaemonProcess, going_on: dict[str, subprocess.Popen[str]]
) -> None:
    grpcurl = go_tool(GRPCURL)
    for line in printed("grpcurl"):
        words = [grpcurl, *shlex.split(line.replace("127.0.0.1:7440", daemon.address))[1:]]
        name = name_of(words)
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        is_first = name not in going_on
        going_on[name if is_first else line] = process
        if name in GO_ON and is_first:
            continue
        written, _ = process.communicate(timeout=END_S)
        assert SIGNS.get(name, "{") in written, f"{line}\n{written}"
        assert process.returncode == 0 or name in {"GetSourceEnds", "HandOver"}, f"{line}\n{written}"
        if name == "Cancel":
            read_until(going_on["StreamResults"], SIGNS["StreamResults"])  # it has been sent, and can be acknowledged
    read_until(going_on["Wait"], SIGNS["Wait"])
    read_until(going_on["TailResults"], "{")
    assert going_on["StreamResults"].wait(END_S) == 0


@pytest.mark.xdist_group("strangers")
def test_ghz_makes_the_calls_of_the_page(daemon: DaemonProcess) -> None:
    ghz = go_tool(GHZ)
    [line] = printed("ghz")
    words = shlex.split(line.replace("127.0.0.1:7440", daemon.address))[1:]
    subprocess.run([go_tool(GRPCURL), *mark_of_orders(daemon)], check=True, capture_output=True, timeout=END_S)
    ran = subprocess.run([ghz, *words], capture_output=True, text=True, check=True, timeout=END_S)
    assert re.search(r"\[OK\]\s+1000 responses", ran.stdout), ran.stdout


def mark_of_orders(daemon: DaemonProcess) -> list[str]:
    """The arguments of the page's AdvanceStream."""
    [line] = [line for line in printed("grpcurl") if line.endswith("/AdvanceStream")]
    return shlex.split(line.replace("127.0.0.1:7440", daemon.address))[1:]


def test_buf_curl_as_the_page_shows_it(daemon: DaemonProcess) -> None:
    [line] = printed("buf curl")
    assert '"version"' in buf_curl(*shlex.split(line.replace("127.0.0.1:7440", daemon.address))[2:])


@pytest.mark.parametrize("protocol", ["grpcweb", "connect"])
def test_buf_curl_over_the_http_port(daemon: DaemonProcess, protocol: str) -> None:
    [line] = printed("buf curl", (ROOT / "docs" / "http.md").read_text("utf-8"))
    line = line.replace("127.0.0.1:7441", daemon.http_address).replace("grpcweb", protocol)
    assert '"version"' in buf_curl(*shlex.split(line)[2:])


def buf_curl(*arguments: str) -> str:
    """The output of `buf curl`."""
    ran = subprocess.run(
        ["buf", "curl", *arguments],
        cwd=ROOT,
        env={"PATH": tool_path(), "HOME": str(ROOT / ".build")},
        capture_output=True,
        text=True,
        check=False,
        timeout=END_S,
    )
    return ran.stdout + ran.stderr
