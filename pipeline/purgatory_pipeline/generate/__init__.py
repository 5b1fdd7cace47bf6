"""Generated histories: realistic load at any size, through the real engine, with its truth beside it."""
