"""Python source as a syntax tree."""

import ast


def parsed(source: str) -> ast.Module:
    """Parse a module.

    CPython 3.11 counts the depth of the tree once for all threads, and parses when it formats a traceback. If a thread
    that an earlier test has left logs an error meanwhile, `ast.parse` raises SystemError.
    """
    while True:
        try:
            return ast.parse(source)
        except SystemError as error:
            if "recursion depth mismatch" not in str(error):
                raise
