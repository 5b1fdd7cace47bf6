"""Programs that show Purgatory at work; README.md says which to read first."""
