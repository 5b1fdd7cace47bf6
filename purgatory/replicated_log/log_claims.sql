-- The valid claims, which show whether an older file belongs to the same history.
CREATE TABLE IF NOT EXISTS log_claims (epoch INTEGER PRIMARY KEY, position INTEGER NOT NULL, writer BLOB NOT NULL)
