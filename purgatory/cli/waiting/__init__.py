"""Commands that wait: for offsets, signals, tokens, everything written so far, or many operations at once."""
