-- Where mail came from: whom SPF is asked about.
--
-- Promises
--   * Mail from this machine, and mail that came another way than by SMTP, has NULL in both columns, and
--     is stored as before: a row with NULLs takes no more room.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.messages
    ADD COLUMN client inet,
    ADD COLUMN helo text;
COMMENT ON COLUMN relay.messages.client IS
    'The address of the SMTP client that brought it (behind a trusted proxy: whom that names); NULL: '
    'this machine, or nobody knows.';
COMMENT ON COLUMN relay.messages.helo IS
    'What the client called itself, 255 printable characters of it at most; NULL as client.';
