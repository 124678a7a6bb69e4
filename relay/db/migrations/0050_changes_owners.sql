-- What is changed of messages is announced with whose mailboxes they are in.
--
-- Promises
--   * Who follows all of an owner's mail is woken by changes to that owner's alone.
--   * Owners are named where the payload has room for all of them, be the messages so many that
--     nothing else is named; where no owner is, whoever follows an owner's mail looks.
--   * A relay of before goes on beside this one: what it is told besides names no message.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

-- As in 0038, and the owners.
CREATE OR REPLACE FUNCTION relay.messages_changed() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    named   bigint;
    payload text;
    owners  text;  -- ',=OWNER' of each; ',=' of mailboxes without one
BEGIN
    IF TG_TABLE_NAME = 'messages' THEN
        SELECT count(*), string_agg(mailbox_id || ':' || id, ','),
               string_agg(DISTINCT ',=' || COALESCE(owner_id::text, ''), '')
        INTO named, payload, owners
        FROM (
            SELECT o.mailbox_id, o.id, b.owner_id
            FROM old_rows o
            JOIN relay.mailboxes b ON b.id = o.mailbox_id
            WHERE b.is_active AND b.expires_at > now()
            LIMIT 101
        ) few;
    ELSE
        SELECT count(*), string_agg(mailbox_id || ':' || message_id, ','),
               string_agg(DISTINCT ',=' || COALESCE(owner_id::text, ''), '')
        INTO named, payload, owners
        FROM (
            SELECT o.mailbox_id, o.message_id, b.owner_id
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
        SELECT string_agg(owner, '')
        INTO owners
        FROM (
            SELECT DISTINCT ',=' || COALESCE(b.owner_id::text, '') AS owner
            FROM old_rows o
            JOIN relay.mailboxes b ON b.id = o.mailbox_id
            WHERE b.is_active AND b.expires_at > now()
            LIMIT 220  -- more than a payload has room for
        ) many;
    END IF;
    IF named > 0 THEN
        IF length(payload || owners) < 8000 THEN
            payload := payload || owners;
        END IF;
        PERFORM pg_notify('relay_changes', payload);
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION relay.messages_changed() IS
    'Announces that messages were deleted, marked or tagged, as MAILBOX:MESSAGE, or MAILBOX of many, '
    'or * of more, and =OWNER of each owner, or = where there is none.';
