"""The same ten tasks in each language: the blocks of its page make one program, which prints what the page shows."""

import re
import textwrap
import threading
import time
from typing import Final

import pytest
from purgatory_client import Client

from examples.secure_demo.authority import Authority
from purgatory.service.access.tokens import add_token
from tests.docs.pages import FENCE, ROOT, WHERE, comparable, shell
from tests.kit.daemon import DaemonProcess, access_flags
from tests.kit.proxy import proxy_thread
from tests.strangers.test_clients import BUILDS

POLICY: Final = '[[grant]]\nto = ["shop"]\nroles = ["wait", "advance"]\ntopics = ["orders"]\n'
HEADING: Final = re.compile(r"^## (.+)\n", re.MULTILINE)
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("strangers")]


@pytest.fixture(scope="module", params=WHERE["programs"])
def tasks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str, str]]:
    """For each task its name, the output on the page and that of the program, which is disconnected at `night-run`."""
    how, folder = WHERE["programs"][request.param], tmp_path_factory.mktemp(request.param) / "shop"
    BUILDS.get(request.param, list)()
    folder.mkdir()
    (folder.parent / "client").symlink_to(ROOT / "client")
    (folder / "token").write_text(add_token(folder / "tokens", "shop"))
    authority = Authority("The shop's authority")
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    certificate, key = authority.issue("purgatory", hosts=("127.0.0.1",)).write(folder, "server")
    tls = ["--tls-certificate-file", str(certificate), "--tls-key-file", str(key), *access_flags(folder, POLICY)]
    with (
        DaemonProcess(folder / "plain") as daemon,
        DaemonProcess(folder / "secured", tls) as secured,
        proxy_thread(daemon.address) as (proxy, _),
        Client(daemon.address) as client,
    ):

        def cut() -> None:
            while not list(client.operations(key="night-run")):  # for as long as it takes to compile the program
                time.sleep(0.1)
            proxy.drop_all()
            client.signal_key("night-run")

        page = (ROOT / "docs" / f"{request.param}.md").read_text("utf-8")
        page = page.replace("waits.example:7440", secured.address).replace("127.0.0.1:7440", proxy.address)
        page = page.replace("a.example:7440", "127.0.0.1:1").replace("b.example:7440", daemon.address)
        _, _, start, *rest = HEADING.split(page.replace("/run/secrets/purgatory", str(folder / "token")))
        fences = {name: FENCE.findall(text) for name, text in zip(rest[:20:2], rest[1:20:2], strict=True)}
        snippets = [(name, text) for name in fences for kind, text in fences[name] if kind != "text"]
        body = "".join(how["scope"].format(name, textwrap.indent(text, how["indent"])) for name, text in snippets)
        (_, commands), (information, program) = FENCE.findall(start)
        assert how["marker"] in program
        (folder / information.split('"')[1]).write_text(program.replace(how["marker"], body))
        threading.Thread(target=cut, daemon=True).start()
        done = shell(f"set -e\n{commands}", folder, {"PURGATORY_ADDRESS": daemon.address})
    assert done.returncode == 0, done.stdout + done.stderr
    _, *printed = HEADING.split(done.stdout)
    pairs = list(zip(printed[::2], printed[1::2], strict=True))
    return [
        (one, "".join(text for kind, text in fences[one] if kind == "text"), "".join(t for n, t in pairs if n == one))
        for one in fences
    ]


@pytest.mark.parametrize("number", range(10))
def test_task_prints_what_its_page_shows(tasks: list[tuple[str, str, str]], number: int) -> None:
    name, shown, printed = tasks[number]
    assert name == WHERE["tasks"][number]
    assert comparable(printed.splitlines()) == comparable(shown.splitlines()) != []
