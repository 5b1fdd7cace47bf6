"""Generated histories: realistic load of any size, through the real engine, with the ground truth beside it."""
