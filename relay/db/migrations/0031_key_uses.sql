-- When an API key was used last: who finds a key that nobody uses may revoke it.
--
-- Promises
--   * Nothing is rewritten; keys from before have NULL until they are used.
--   * Noted once a minute at most by each process, apart from what the key was used for.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.api_keys ADD COLUMN last_used_at timestamptz;
COMMENT ON COLUMN relay.api_keys.last_used_at IS
    'When its token was shown last, to the minute; NULL: never, or before there was this column.';
