CREATE TABLE IF NOT EXISTS log_place (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    position INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    number INTEGER NOT NULL,
    writer BLOB NOT NULL,
    log_id BLOB NOT NULL,
    claim_position INTEGER NOT NULL,
    claim_writer BLOB NOT NULL,
    logged_ms INTEGER NOT NULL,
    leader TEXT NOT NULL,
    own_writer BLOB NOT NULL,
    crc32 INTEGER NOT NULL
)
