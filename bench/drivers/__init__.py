"""Load generators: processes that load a server over loopback and measure what a caller observes."""
