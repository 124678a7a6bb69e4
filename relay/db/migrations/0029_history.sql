-- The last day, a row a minute: what charts begin with.
--
-- Promises
--   * All relays on this database add to the same row, so it is what all of them did.
--   * A minute in which none ran has no row.  Rows go after 25 hours.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.history (
    at                  timestamptz PRIMARY KEY,
    received            bigint NOT NULL,
    sent                bigint NOT NULL,
    failed              bigint NOT NULL,
    bounced             bigint NOT NULL,
    waiting             bigint NOT NULL,
    oldest_due_seconds  double precision
) WITH (fillfactor = 50);  -- a minute is written once by each relay, in place
COMMENT ON TABLE relay.history IS
    'What moved in the minute that begins at `at`, and what waited at its end.';
COMMENT ON COLUMN relay.history.received IS 'Messages accepted by SMTP.';
COMMENT ON COLUMN relay.history.sent IS 'Outbound messages that their upstreams took.';
COMMENT ON COLUMN relay.history.failed IS 'Those given up: refused for good, or once too often.';
COMMENT ON COLUMN relay.history.bounced IS 'Those whose recipient was refused.';
COMMENT ON COLUMN relay.history.waiting IS 'Outbound messages that were queued.';
COMMENT ON COLUMN relay.history.oldest_due_seconds IS
    'How long the oldest of them had been due; NULL: none was.';
