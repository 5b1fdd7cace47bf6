"""Crash test: a real daemon with a journal under load, killed again and again; every caller's log is held against the
rule. `make crash`.
"""
