"""Budgets: use of resources per account, limits on it, and memory."""
