"""Sources: who keeps marks up to date, which of them cannot be seen, what is waited on, and where logs end."""
