"""`python -m purgatory_connectors` is `purgatory-source`."""

from purgatory_connectors.cli import main

if __name__ == "__main__":
    main()
