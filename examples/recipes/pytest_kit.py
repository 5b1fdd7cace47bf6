"""Test a pipeline without sleeps: an empty project, one test, and pytest with the fixtures of the test kit.

The pipeline is a worker that copies numbers into a table and reports how far it is. The test writes numbers, waits for
the mark, and looks at the table. With Kafka, `processed("billing", "orders")` is that wait, and nothing has to be
reported: a source follows the group's commits.

Prints:
    exit code 0
    1 passed
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TEST = """
import queue, threading
import pytest

@pytest.fixture
def pipeline(purgatory):
    numbers, table = queue.Queue(), []

    def work():
        while (number := numbers.get()) is not None:
            table.append(number)
            purgatory.client.advance("recipe/table-0", high_watermark=len(table))

    worker = threading.Thread(target=work)
    worker.start()
    yield numbers, table
    numbers.put(None)
    worker.join()

def test_numbers_arrive(purgatory, pipeline):
    numbers, table = pipeline
    for number in range(1_000):
        numbers.put(number)
    purgatory.client.produce({"recipe/table-0": 1_000}, timeout=30).raise_for_outcome()
    assert table == list(range(1_000))
"""


def main() -> None:
    address = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_pipeline.py").write_text(TEST, "utf-8")
        # Without this setting the fixture starts a daemon of its own.
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"purgatory_address={address}"]
        run = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    print(f"exit code {run.returncode}")
    print(*re.findall(r"\d+ (?:passed|failed|errors?)", run.stdout))


if __name__ == "__main__":
    main()
