"""`python -m purgatory` is the command line `purgatory`, for where its script is not on the path."""

from purgatory_client.cli import main

if __name__ == "__main__":
    main()
