-- Keys with a value, and those that failed. A table of its own, because a further column of `keys` would invalidate
-- the checksums of its rows.
CREATE TABLE key_values (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    failed INTEGER NOT NULL,
    value BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
