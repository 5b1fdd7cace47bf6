CREATE TABLE session (
    session_id TEXT NOT NULL,
    next_operation_id INTEGER NOT NULL,
    removed_operation_id INTEGER NOT NULL,
    incarnation TEXT NOT NULL
);
CREATE TABLE registrations (
    first_operation_id INTEGER PRIMARY KEY,
    operations INTEGER NOT NULL,
    is_batch INTEGER NOT NULL,
    tag TEXT NOT NULL,
    submitted_time REAL NOT NULL,
    columns BLOB NOT NULL,
    checksum INTEGER NOT NULL
);
CREATE TABLE results (place INTEGER PRIMARY KEY, batch BLOB NOT NULL, checksum INTEGER NOT NULL);
