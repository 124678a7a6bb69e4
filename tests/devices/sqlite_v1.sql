-- A store of version 1, as .dump gives it: A's ids 1 and 3 have expired and were not told of.
BEGIN;
CREATE TABLE inbox (
        id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice
        recipient  BLOB NOT NULL,     -- 32-byte X25519 public key
        envelope   BLOB NOT NULL,     -- opaque
        expires_at INTEGER NOT NULL   -- Unix seconds; a fraction makes it REAL
    );
INSERT INTO "inbox" VALUES(2,X'0101010101010101010101010101010101010101010101010101010101010101',X'74776F',100);
INSERT INTO "inbox" VALUES(4,X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',X'666F7572',100);
INSERT INTO "inbox" VALUES(5,X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',X'',200);
CREATE TABLE inboxes (
        recipient BLOB PRIMARY KEY,
        blobs     INTEGER NOT NULL DEFAULT 0,
        bytes     INTEGER NOT NULL DEFAULT 0,
        -- Both begin at the id of the first blob, and `missed` rises by one for each that expired.
        -- Each of those has used an id, so what is remembered of a row that is gone (an inbox with
        -- nothing in it and nothing to tell) is never above where the next one begins.
        missed    INTEGER NOT NULL,
        told      INTEGER NOT NULL
    ) WITHOUT ROWID;
INSERT INTO "inboxes" VALUES(X'000102030405060708090A0B0C0D0E0F101112131415161718191A1B1C1D1E1F',2,4,3,1);
INSERT INTO "inboxes" VALUES(X'0101010101010101010101010101010101010101010101010101010101010101',1,3,2,2);
CREATE INDEX inbox_recipient ON inbox (recipient);
CREATE INDEX inbox_expiry ON inbox (expires_at);
CREATE TRIGGER inbox_put AFTER INSERT ON inbox BEGIN
        INSERT INTO inboxes (recipient, blobs, bytes, missed, told)
        VALUES (NEW.recipient, 1, length(NEW.envelope), NEW.id, NEW.id)
        ON CONFLICT (recipient) DO UPDATE
        SET blobs = blobs + 1, bytes = bytes + excluded.bytes;
    END;
CREATE TRIGGER inbox_delete AFTER DELETE ON inbox BEGIN
        UPDATE inboxes
        SET blobs = blobs - 1, bytes = bytes - length(OLD.envelope)
        WHERE recipient = OLD.recipient;
        DELETE FROM inboxes
        WHERE recipient = OLD.recipient
          AND blobs = 0
          AND missed = told;
    END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('inbox',5);
COMMIT;PRAGMA application_id = 1380214134;
PRAGMA user_version = 1;
