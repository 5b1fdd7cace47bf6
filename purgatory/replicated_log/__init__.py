"""A fleet: several daemons over one replicated log, of which one leads. An extension; without it nothing changes."""
