-- The signed posts of upstreams that were taken, so that each counts once.
--
-- Promises
--   * The id of a post goes in the commit that does what follows from it, and on every node alike: a
--     repetition, at the same time or after a restart, changes nothing.
--   * It stays for longer than the signature of the post holds.
--   * A relay of before goes on beside this one: it notes no ids.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.notifications (
    id         text COLLATE "C" PRIMARY KEY CHECK (octet_length(id) <= 256),
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE relay.notifications IS
    'Ids (webhook-id) of signed posts to POST /api/v1/ingest/notifications that were taken, for as '
    'long as their signatures may hold.';
CREATE INDEX notifications_age ON relay.notifications (created_at);

COMMENT ON COLUMN relay.tls_reports.mailed IS
    'Whether the report was queued for those who get it by mail; what was counted stays while it is '
    'to be posted still.';
