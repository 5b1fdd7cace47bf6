"""Webhooks: results POSTed to a callback URL, with host rules, signatures, retries and dead letters."""
