-- Whoever shows lists of mail hears what others change of it: deletions, reads and tags.
--
-- Promises
--   * Whatever deletes messages of live mailboxes, or changes them or their tags, announces it in its
--     own transaction, in SQL too: nothing is told that did not happen.
--   * One notification a statement, and none that is longer than a payload may be: up to 100 messages
--     are named, of more their mailboxes, and of more than 200 of those nothing: everybody looks.
--   * Mail that comes in costs nothing, and neither does the end of a mailbox: nobody shows it then.
--   * A relay of before goes on beside this one: it listens to no such channel.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

-- Messages first, as whoever stores them.
LOCK TABLE relay.messages IN SHARE ROW EXCLUSIVE MODE;
LOCK TABLE relay.summaries IN SHARE ROW EXCLUSIVE MODE;

-- A row of old has its raw_email out of line, or it is short: the copies are small.
CREATE FUNCTION relay.messages_changed() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    named   bigint;
    payload text;
BEGIN
    IF TG_TABLE_NAME = 'messages' THEN
        SELECT count(*), string_agg(mailbox_id || ':' || id, ',')
        INTO named, payload
        FROM (
            SELECT o.mailbox_id, o.id
            FROM old_rows o
            JOIN relay.mailboxes b ON b.id = o.mailbox_id
            WHERE b.is_active AND b.expires_at > now()
            LIMIT 101
        ) few;
    ELSE
        SELECT count(*), string_agg(mailbox_id || ':' || message_id, ',')
        INTO named, payload
        FROM (
            SELECT o.mailbox_id, o.message_id
            FROM old_rows o
            JOIN relay.mailboxes b ON b.id = o.mailbox_id
            WHERE b.is_active AND b.expires_at > now()
            LIMIT 101
        ) few;
    END IF;
    IF named > 100 THEN
        SELECT relay.payload_of(array_agg(mailbox_id))
        INTO payload
        FROM (
            SELECT DISTINCT o.mailbox_id
            FROM old_rows o
            JOIN relay.mailboxes b ON b.id = o.mailbox_id
            WHERE b.is_active AND b.expires_at > now()
            LIMIT 201
        ) many;
    END IF;
    IF named > 0 THEN
        PERFORM pg_notify('relay_changes', payload);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION relay.messages_changed() IS
    'Announces that messages were deleted, marked or tagged, as MAILBOX:MESSAGE, or MAILBOX of many.';

CREATE TRIGGER messages_changed_delete AFTER DELETE ON relay.messages
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.messages_changed();
CREATE TRIGGER messages_changed_update AFTER UPDATE ON relay.messages
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.messages_changed();
CREATE TRIGGER summaries_changed AFTER UPDATE ON relay.summaries
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.messages_changed();
