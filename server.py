"""Starts the daemon: `python server.py --help`. All of it is in `purgatory.daemon`."""

from purgatory.startup_signals import handle_startup_signals

if __name__ == "__main__":
    handle_startup_signals()
    from purgatory.extensions.installed import ALL
    from purgatory.run_daemon import daemon_command

    daemon_command(ALL)(prog_name="server.py")
