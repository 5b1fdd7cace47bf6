"""Crash test (`make crash`): a real daemon with a journal under load is killed repeatedly, and the records of its
callers are checked.
"""
