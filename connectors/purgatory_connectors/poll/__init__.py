"""A source for any number that only rises, read from an HTTP server or with a query of a database."""
