"""Who waits on what, since when and until when: the pending table, watches and the timing wheel."""
