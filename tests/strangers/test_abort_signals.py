"""Signals that cancel waits of the TypeScript client: Node warns where listeners accumulate on one."""

import subprocess

import pytest

from tests.kit.daemon import DaemonProcess
from tests.strangers.client_builds import BUILT, CLIENTS, build_typescript

PROGRAM = """
import { getEventListeners } from "node:events";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { Session } from "./dist/session.js";

const warnings = [];
process.on("warning", ({ name }) => warnings.push(name));
const session = new Session(createGrpcTransport({ baseUrl: `http://${process.argv[1]}` }), crypto.randomUUID());
const user = new AbortController();
const wait = (timeoutMs) =>
  session.wait({ timeoutMs, condition: { case: "signal", value: { keys: [{ key: "never" }] } } }, user.signal);
for (let round = 0; round < 20; round++) await wait(1n);
const listeners = () => [user.signal, session.connection.signal].map((one) => getEventListeners(one, "abort").length);
const [ofUser, ofConnection] = listeners();
const waits = Array.from({ length: 100 }, () => wait(600_000n).catch((reason) => reason));
const [shared] = listeners();
user.abort("enough");
const reasons = new Set(await Promise.all(waits));
await session.close();
await new Promise((resolve) => setImmediate(resolve)); // warnings are emitted in the next tick
console.log(ofUser, ofConnection < 5, shared, [...reasons].join(), warnings.join());
process.exit(0);
"""


@pytest.mark.xdist_group("strangers")
def test_listeners_do_not_accumulate(shared_daemon: DaemonProcess) -> None:
    """A hundred waits share one listener, all are cancelled by it, and Node warns of nothing."""
    BUILT.mkdir(parents=True, exist_ok=True)
    build_typescript()
    command = ["node", "--input-type=module", "-e", PROGRAM, shared_daemon.address]
    ran = subprocess.run(command, cwd=CLIENTS / "typescript", capture_output=True, text=True, check=False, timeout=120)
    assert (ran.stdout, ran.stderr) == ("0 true 1 enough \n", "")
