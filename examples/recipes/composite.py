"""One wait over marks and signals: two of three copies have the record and the job is done, unless the job failed.

A release is switched on when its data is in place and its job has finished. If the job reports a failure instead, the
wait ends at once with the reason, before its timeout.

Prints:
    satisfied: orders-0 reached 42, pg/main/r1 reached 9000
    failed: job-18/failed reached 1
    expired: no report of job-19
"""

import os
import threading

from purgatory_client import Client, Result, at_least, mark, signal
from purgatory_client.errors import UnlessReached, WaitExpired

ADDRESS = os.environ.get("PURGATORY_ADDRESS", "127.0.0.1:7440")


def wait_for(client: Client, job: str, offset: int, timeout: float) -> Result:
    """Wait until two of the three are true, unless the job fails."""
    condition = at_least(2, mark("orders-0", offset), mark("pg/main/r1", 9_000), signal(job))
    return client.wait(condition, unless=signal(f"{job}/failed"), timeout=timeout)


def reached(result: Result) -> str:
    """The terms that decided, and what each reached."""
    return ", ".join(f"{term.name} reached {term.reached_offset}" for term in result.decided_by)


def main() -> None:
    """Show each outcome: satisfied, failed by the failure arm, expired."""
    with Client(ADDRESS) as client:
        client.advance("orders-0", high_watermark=42)
        replica = threading.Timer(0.1, client.advance, ["pg/main/r1"], {"high_watermark": 9_000})
        replica.start()
        result = wait_for(client, "job-17", 42, timeout=30)
        print(f"satisfied: {reached(result.raise_for_outcome())}")
        replica.join()

        threading.Timer(0.1, client.signal_key, ["job-18/failed"]).start()
        try:
            wait_for(client, "job-18", 43, timeout=30).raise_for_outcome()
        except UnlessReached as error:
            print(f"failed: {reached(error.result)}")

        try:
            wait_for(client, "job-19", 43, timeout=0.1).raise_for_outcome()
        except WaitExpired as error:
            print(f"expired: no report of {error.result.items[2].name}")


if __name__ == "__main__":
    main()
