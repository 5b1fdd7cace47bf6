"""Who looks on: what ends, told as it happens, and what most wait for."""
