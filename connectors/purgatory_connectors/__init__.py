"""Sources: programs that tell daemons by themselves where Kafka, PostgreSQL, Redis and others stand.

They know the client and, of the daemon, only the formats of addresses and of the log.
"""
