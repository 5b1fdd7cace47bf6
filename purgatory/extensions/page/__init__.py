"""The live page: what waits on what, why not yet, and until when, for people with a browser."""
