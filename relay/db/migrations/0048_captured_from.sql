-- Mailboxes of capture know by whose mail they were made, so that a flood pushes out its own.
--
-- Promises
--   * Whoever has fewer than others loses none to them (relay/mailboxes/capture.py).
--   * Those that are there count as one sender's.
--   * Plain mail pays nothing: it leaves the new column NULL.  Nor does any index grow.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.mailboxes ADD COLUMN captured_from text;
COMMENT ON COLUMN relay.mailboxes.captured_from IS
    'By whose mail capture made the mailbox: a client''s network, a login or the domain of a '
    'reverse-path.  NULL: it was made otherwise, or before this was kept.';
