"""One module a kind of operation: what is invalid, is it met already, what wakes it, what it answers."""
