"""The report: turns an archive into tables that show wrong timeouts and slow replicas."""
