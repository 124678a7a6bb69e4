-- Captured mailboxes are in no index by their owner, who is the administrator for all of them.
--
-- Promises
--   * An owner's list and count go by an index, as they did, for each statement that says
--     `captured_at IS NULL`, which holds for all mailboxes of all keys.
--   * Capture to a new address pays for two entries of an index less, and so does its eviction.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

DROP INDEX relay.mailboxes_owner;
DROP INDEX relay.mailboxes_owner_live;
CREATE INDEX mailboxes_owner ON relay.mailboxes (owner_id, id DESC)
    WHERE owner_id IS NOT NULL AND captured_at IS NULL;
CREATE INDEX mailboxes_owner_live ON relay.mailboxes (owner_id, expires_at)
    WHERE is_active AND owner_id IS NOT NULL AND captured_at IS NULL;
