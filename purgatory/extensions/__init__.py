"""Extensions: optional parts of the daemon, listed in `installed`.

This file imports nothing: the archive's writer process and Spark's workers load single modules of an extension without
the daemon.
"""
