-- Capture: mail for domains that are not the relay's own, and tags.
--
-- Promises
--   * A mailbox that capture made says when it last took mail (captured_at); its expires_at is that
--     and the TTL, so that those which go first, by either, are the same.
--   * Plain mail pays nothing: it leaves the new columns NULL.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TYPE relay.owner_type ADD VALUE 'capture';

ALTER TABLE relay.mailboxes ADD COLUMN captured_at timestamptz;
COMMENT ON COLUMN relay.mailboxes.captured_at IS
    'When mail last came to a mailbox that capture made; NULL: it was not made by capture.';
-- Which go first when there are too many, and how many there are.
CREATE INDEX mailboxes_captured ON relay.mailboxes (captured_at, id)
    WHERE is_active AND captured_at IS NOT NULL;

-- The relay's own statements say `relay.quiet`, as of messages: whoever waits for such a mailbox hears
-- of the mail that keeps it, and the ticker, which looks every so often anyway, may flip it late.
DROP TRIGGER mailboxes_announce_insert ON relay.mailboxes;
CREATE TRIGGER mailboxes_announce_insert AFTER INSERT ON relay.mailboxes
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (current_setting('relay.quiet', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION relay.mailboxes_announce_insert();
DROP TRIGGER mailboxes_announce_update ON relay.mailboxes;
CREATE TRIGGER mailboxes_announce_update AFTER UPDATE ON relay.mailboxes
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT
    WHEN (current_setting('relay.quiet', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION relay.mailboxes_announce_update();

ALTER TABLE relay.messages ADD COLUMN login text CHECK (login <> '');
COMMENT ON COLUMN relay.messages.login IS
    'The user name by which its sender signed in while capture was on; NULL: nobody did.';

ALTER TABLE relay.summaries ADD COLUMN tags text[] CHECK (cardinality(tags) > 0);
COMMENT ON COLUMN relay.summaries.tags IS
    'From the login, the plus part of the recipient and X-Tags when the message was parsed, or by '
    'hand since; NULL: none.';

-- It named a file that has moved.
COMMENT ON FUNCTION relay.take_tokens(integer) IS
    'Takes up to p_limit tokens out of the queue, recoveries first; action: 1 activation, 2 '
    'password_recovery.  They are back with a rollback.  Called by relay/lifecycle/token_queue.py.';
