"""`purgatory serve`: the daemon with the installed extensions. Apart from these imports, the client needs no server."""

from purgatory.extensions.installed import ALL
from purgatory.run_daemon import daemon_command

serve = daemon_command(ALL)
