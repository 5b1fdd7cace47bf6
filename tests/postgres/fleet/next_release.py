"""`purgatory` as a later release, whose journal has a further table."""

import runpy

from purgatory.journal import sql_schema

if __name__ == "__main__":
    migrations = (*sql_schema.MIGRATIONS, "CREATE TABLE later (number INTEGER PRIMARY KEY);")
    # Before the modules of the fleet are imported, which count the migrations.
    sql_schema.MIGRATIONS = migrations  # type: ignore[assignment, misc]
    sql_schema.migrate.__defaults__ = (migrations,)
    runpy.run_module("purgatory", run_name="__main__", alter_sys=True)
