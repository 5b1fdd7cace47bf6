"""Whole-daemon simulation: real servicer, sessions, host and client code over broken connections, judged from outside.

`plan` is drawn from a seed before anything runs; `run` carries it out; `tap` and `ledger` write down what the engine
was told and what callers saw; `model` and `checker` say what should have come of it, and share no code with engine or
client.
"""
