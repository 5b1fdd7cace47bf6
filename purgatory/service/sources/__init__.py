"""Sources: which ones keep marks up to date, which marks are stale, which names are in demand, and where logs end."""
