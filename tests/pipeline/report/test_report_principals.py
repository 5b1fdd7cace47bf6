"""The report tells principals apart: in an archive of a real daemon with a policy, sessions and single waits alike."""

from pathlib import Path

import grpc
import pandas as pd
import pytest
from purgatory_pipeline.analytics.report.command import report
from pyspark.sql import SparkSession

from purgatory.service.access.tokens import add_token
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from purgatory.v1.purgatory_service_pb2_grpc import PurgatoryServiceStub
from tests.conftest import StartDaemon
from tests.service.serving import high_watermark, produce, produce_columns

POLICY = """
[[grant]]
to = ["ann", "bob", "leader"]
roles = ["wait", "advance"]
topics = ["orders"]
"""


@pytest.mark.slow  # asks Spark
def test_waits_are_counted_by_principal(start_daemon: StartDaemon, spark: SparkSession, tmp_path: Path) -> None:
    """Of one topic and kind, the waits of a session are its principal's, and those of calls of Wait their caller's."""
    del spark
    (tmp_path / "policy.toml").write_text(POLICY, "utf-8")
    tokens = {name: add_token(tmp_path / "tokens", name) for name in ("ann", "bob", "leader")}
    flags = ["--access-policy-file", str(tmp_path / "policy.toml"), "--access-tokens-file", str(tmp_path / "tokens")]
    daemon = start_daemon(*flags, "--archive", str(tmp_path / "archive"))
    with grpc.insecure_channel(daemon.address) as channel:
        stub = PurgatoryServiceStub(channel)
        metadata = {name: (("authorization", f"Bearer {token}"),) for name, token in tokens.items()}
        batch = produce_columns(range(1, 31), "orders", offset=5)
        stub.Register(wire.RegisterRequest(session_id="s", batch=batch), metadata=metadata["ann"])
        events = event_pb2.EventRows(events=[high_watermark("orders", 5)])
        stub.Advance(wire.AdvanceRequest(rows=events), metadata=metadata["leader"])
        for _ in range(7):
            stub.Wait(wire.WaitRequest(operation=produce(1, "orders", 1)), metadata=metadata["bob"])
    assert daemon.stop() == 0
    report(str(tmp_path / "archive"), out=str(tmp_path / "report"))
    groups = pd.read_parquet(tmp_path / "report" / "tables" / "groups")
    ended = groups[groups["window_start"].isna()] if groups["window_start"].isna().any() else groups
    assert ended.groupby("principal")["ended"].sum().to_dict() == {"ann": 30, "bob": 7}
