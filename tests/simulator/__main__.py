"""Starts the command line: `python -m tests.simulator --seed 7 --steps 20000`."""

from tests.simulator.command import main

if __name__ == "__main__":
    main()
