"""How a run that is too large for one task is divided."""
