CREATE TABLE moment (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    engine_ms INTEGER NOT NULL,
    wall_ms INTEGER NOT NULL,
    boot_ms INTEGER NOT NULL,
    boot_id TEXT NOT NULL,
    group_number INTEGER NOT NULL,
    clean INTEGER NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE sessions (
    session INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    highest_operation_id INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    acknowledged_sequence INTEGER NOT NULL,
    sequence_shift INTEGER NOT NULL,
    uncertain_after INTEGER NOT NULL,
    incarnation TEXT NOT NULL,
    principal TEXT NOT NULL,
    callback_url TEXT NOT NULL,
    callback_token TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE refused_ids (
    session INTEGER PRIMARY KEY,
    ranges BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE dead_letters (
    letter INTEGER PRIMARY KEY,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE registrations (
    registration INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    first_operation_id INTEGER NOT NULL,
    last_operation_id INTEGER NOT NULL,
    operations INTEGER NOT NULL,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE gone (
    registration INTEGER PRIMARY KEY,
    bits BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE results (
    result INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    results INTEGER NOT NULL,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE partitions (
    place INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    number INTEGER NOT NULL,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL,
    UNIQUE (topic, number)
);
CREATE TABLE changes (
    change INTEGER PRIMARY KEY,
    content BLOB NOT NULL,
    crc32 INTEGER NOT NULL
);
CREATE TABLE keys (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    count INTEGER NOT NULL,
    crc32 INTEGER NOT NULL
);
