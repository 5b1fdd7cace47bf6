"""Crash test (`make crash`): a real daemon with a journal is killed repeatedly under load, and its callers' records
are checked.
"""
