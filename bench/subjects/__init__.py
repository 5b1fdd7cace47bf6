"""Our own components in isolation, driven at full speed. Each is a worker."""
