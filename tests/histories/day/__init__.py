"""Parts of the world `day`: real servicer, sessions, host and client over broken connections.

`plan` is drawn from a seed before anything runs, and the world executes it. `engine_tap` and `call_log` record
the engine's calls and the callers' results. `model` and `checker` compute the expected results without engine or
client.
"""
