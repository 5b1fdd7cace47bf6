"""The report: from an archive to tables that show which timeouts are wrong and which replica is slow."""
