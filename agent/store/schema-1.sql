CREATE TABLE journal (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    wall REAL NOT NULL, boot_id TEXT NOT NULL, boottime_ns INTEGER NOT NULL,
    code TEXT NOT NULL, device TEXT NOT NULL, part TEXT NOT NULL, serial TEXT,
    state TEXT NOT NULL, payload BLOB NOT NULL, checksum INTEGER NOT NULL)

CREATE INDEX journal_by_device ON journal (device, id)

CREATE INDEX journal_by_serial ON journal (serial, id)

CREATE TRIGGER journal_keeps_rows BEFORE UPDATE ON journal
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END

CREATE TRIGGER journal_loses_nothing BEFORE DELETE ON journal
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END

CREATE TABLE memory (name TEXT PRIMARY KEY, value BLOB NOT NULL, checksum INTEGER NOT NULL)

CREATE TABLE results (
    id INTEGER PRIMARY KEY AUTOINCREMENT, wall REAL NOT NULL, workload TEXT NOT NULL,
    payload BLOB NOT NULL, checksum INTEGER NOT NULL)

CREATE TABLE device_seen (
    device TEXT NOT NULL, serial TEXT NOT NULL, vendor TEXT NOT NULL, kind TEXT NOT NULL, pci TEXT,
    model TEXT NOT NULL, first_seen REAL NOT NULL, last_seen REAL NOT NULL, PRIMARY KEY (device, serial))

CREATE TABLE series (
    id INTEGER PRIMARY KEY, device TEXT NOT NULL, quantity TEXT NOT NULL, part TEXT NOT NULL,
    UNIQUE (device, quantity, part))

CREATE TABLE rollup (
    minute INTEGER NOT NULL, series INTEGER NOT NULL,
    minimum REAL NOT NULL, mean REAL NOT NULL, maximum REAL NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (minute, series)) WITHOUT ROWID
