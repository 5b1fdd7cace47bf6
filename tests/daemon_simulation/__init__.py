"""Whole-daemon simulation: real servicer, sessions, host and client code over broken connections, judged from outside.

`plan` is drawn from a seed before anything runs; `simulated_day` carries it out; `engine_tap` and `call_log` record the
engine's calls and what callers saw; `model` and `checker` work out what should have come of it, without a line of
engine or client.
"""
