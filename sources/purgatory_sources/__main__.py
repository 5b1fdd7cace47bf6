"""`python -m purgatory_sources` is `purgatory-source`."""

from purgatory_sources.cli import main

if __name__ == "__main__":
    main()
