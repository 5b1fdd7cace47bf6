"""The report: from an archive to tables that say which timeouts are wrong and which replica is slow."""
