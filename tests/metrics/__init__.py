"""What the metrics page shows, and what explains it."""
