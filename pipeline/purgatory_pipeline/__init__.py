"""Analysis of archives on Spark (check, report, what-if replay), and the purgatory as a Spark stream."""
