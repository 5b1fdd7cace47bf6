"""Results that are POSTed to a callback: which hosts, in what form, how often, and what becomes of the rest."""
