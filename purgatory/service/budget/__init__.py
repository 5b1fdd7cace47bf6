"""What is held for whom, how much that may be, and what it takes in memory."""
