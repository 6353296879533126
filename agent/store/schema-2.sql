-- Rows of version 1 are sorted into changes and counts later, a few at a time, because a start must not wait.
ALTER TABLE journal ADD COLUMN kind TEXT NOT NULL DEFAULT 'unsorted'

DROP TRIGGER journal_keeps_rows

DROP TRIGGER journal_loses_nothing

CREATE TRIGGER journal_keeps_rows BEFORE UPDATE OF
    id, wall, boot_id, boottime_ns, code, device, part, serial, state, payload, checksum ON journal
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END

CREATE TRIGGER journal_keeps_kinds BEFORE UPDATE OF kind ON journal WHEN OLD.kind <> 'unsorted'
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END

CREATE TRIGGER journal_loses_nothing BEFORE DELETE ON journal WHEN OLD.kind <> 'count'
    BEGIN SELECT RAISE(ABORT, 'the journal is append-only'); END

CREATE INDEX journal_counts ON journal (wall) WHERE kind = 'count'

CREATE TABLE state (
    code TEXT NOT NULL, device TEXT NOT NULL, part TEXT NOT NULL, payload BLOB NOT NULL,
    number INTEGER NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (code, device, part)) WITHOUT ROWID

CREATE TABLE journal_sum (
    one INTEGER PRIMARY KEY CHECK (one = 1), rows INTEGER NOT NULL, total INTEGER NOT NULL,
    checksum INTEGER NOT NULL)

CREATE TABLE set_aside (what TEXT NOT NULL, number INTEGER NOT NULL, PRIMARY KEY (what, number))
