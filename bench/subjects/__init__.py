"""Our own parts by themselves, driven as fast as they go: each is a worker."""
