"""The command `purgatory`, also available as `python -m purgatory` if its script is not on the path."""

import gc
import os
import sys

from purgatory.startup_signals import handle_startup_signals


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        handle_startup_signals()
        # gRPC would log a line for each process that the daemon starts. None of them uses gRPC's connections.
        os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    gc.disable()  # imports leave nothing to collect; `resolve_command` enables it again
    from purgatory.cli import main as run  # noqa: PLC0415 - slow, and signals may arrive during the import

    run()


if __name__ == "__main__":
    main()
