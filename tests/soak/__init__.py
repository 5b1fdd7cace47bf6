"""Soak: callers that come and go at one daemon with a journal, for hours. Every wait is accounted for, and the daemon's
memory and open files must not grow. `make soak`.
"""
