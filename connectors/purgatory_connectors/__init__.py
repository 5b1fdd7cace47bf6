"""Sources: programs that tell daemons by themselves where Kafka, PostgreSQL, Redis and others stand.

They know only the client.
"""
