-- What senders are called, for lists: nothing is parsed to show one.
--
-- Promises
--   * Mail from before has NULL, and is shown with its address; nothing is rewritten.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.summaries ADD COLUMN from_name text;
COMMENT ON COLUMN relay.summaries.from_name IS
    'What From says before its first address, decoded; NULL: nothing, or it was parsed before there '
    'was this column.';
