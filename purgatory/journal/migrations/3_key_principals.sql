-- Keys that belong to a principal.
CREATE TABLE key_principals (
    place INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    principal TEXT NOT NULL,
    crc32 INTEGER NOT NULL
);
