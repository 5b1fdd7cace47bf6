"""Sources: programs that tell daemons by themselves where Kafka and PostgreSQL stand. They know only the client."""
