-- Looking addresses up passes over what was folded.
--
-- Promises
--   * However much was counted and folded for a mailbox since the last vacuum, to look its address up
--     takes no longer: an index scan marks the entries of rows that are gone, and the next one leaves
--     them out.  A bitmap scan reads them all, each time.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER FUNCTION relay.find_mailboxes(text[]) SET enable_bitmapscan = off;
