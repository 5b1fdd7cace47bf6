"""One module per kind of operation: its validity rules, its condition, what wakes it, and its result."""
