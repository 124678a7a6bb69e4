-- How many messages of a mailbox are unread is known without looking at them.
--
-- Promises
--   * messages - was_read, of mailbox_usage and usage_changes together, is exact in every snapshot,
--     whoever changes messages, in SQL too.
--   * Mail that comes in costs nothing more: it is unread, and what is not counted is NULL, for which
--     a row of usage_changes has room in its header.  A message that is read costs such a row.
--   * A relay of before goes on beside this one: its statements say nothing of the new columns.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

-- Nobody changes a message between the count and the trigger.  Messages first, as whoever stores them.
LOCK TABLE relay.messages IN SHARE ROW EXCLUSIVE MODE;
ALTER TABLE relay.usage_changes ADD COLUMN was_read integer;
COMMENT ON COLUMN relay.usage_changes.was_read IS
    'How many more of them were read; NULL: as many as before.';
ALTER TABLE relay.mailbox_usage ADD COLUMN was_read bigint NOT NULL DEFAULT 0;
INSERT INTO relay.usage_changes (mailbox_id, messages, bytes, was_read)
SELECT mailbox_id, 0, 0, count(*) FROM relay.messages WHERE is_read GROUP BY mailbox_id;

CREATE OR REPLACE FUNCTION relay.messages_queue() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.unsummarised (message_id, mailbox_id, size)
    VALUES (NEW.id, NEW.mailbox_id, NEW.size)
    ON CONFLICT DO NOTHING;
    INSERT INTO relay.usage_changes (mailbox_id, messages, bytes, was_read)
    VALUES (NEW.mailbox_id, 1, NEW.size, CASE WHEN NEW.is_read THEN 1 END);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION relay.messages_count_update() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF OLD.mailbox_id = NEW.mailbox_id THEN
        INSERT INTO relay.usage_changes (mailbox_id, messages, bytes, was_read)
        VALUES (NEW.mailbox_id, 0, NEW.size - OLD.size, NEW.is_read::integer - OLD.is_read::integer);
    ELSE
        INSERT INTO relay.usage_changes (mailbox_id, messages, bytes, was_read)
        VALUES (OLD.mailbox_id, -1, -OLD.size, -OLD.is_read::integer),
               (NEW.mailbox_id, 1, NEW.size, NEW.is_read::integer);
    END IF;
    RETURN NULL;
END
$$;
DROP TRIGGER messages_count_update ON relay.messages;
CREATE TRIGGER messages_count_update AFTER UPDATE OF mailbox_id, raw_email, is_read ON relay.messages
    FOR EACH ROW
    WHEN (OLD.mailbox_id <> NEW.mailbox_id OR OLD.size <> NEW.size OR OLD.is_read <> NEW.is_read)
    EXECUTE FUNCTION relay.messages_count_update();

CREATE OR REPLACE FUNCTION relay.messages_count_delete() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.usage_changes (mailbox_id, messages, bytes, was_read)
    SELECT o.mailbox_id, -count(*), -sum(o.size), -count(*) FILTER (WHERE o.is_read)
    FROM old_rows o
    -- Gone with its mailbox: the counts went, too.
    WHERE EXISTS (SELECT FROM relay.mailboxes b WHERE b.id = o.mailbox_id)
    GROUP BY o.mailbox_id;
    RETURN NULL;
END
$$;

-- As in 0014, and what was read.
CREATE OR REPLACE FUNCTION relay.fold_usage(
    addresses text[] DEFAULT NULL, at_least integer DEFAULT 16
) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    chosen uuid[];
    folded bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(1380274273, 7) THEN
        RETURN 0;
    END IF;
    IF addresses IS NULL THEN
        -- Its mailbox was deleted while it was on its way.
        DELETE FROM relay.usage_changes c
        WHERE NOT EXISTS (SELECT FROM relay.mailboxes b WHERE b.id = c.mailbox_id);
        SELECT array_agg(mailbox_id) INTO chosen
        FROM (SELECT mailbox_id FROM relay.usage_changes
              GROUP BY mailbox_id
              HAVING count(*) >= at_least
              LIMIT 10000) long;
    ELSE
        SELECT array_agg(id) INTO chosen FROM relay.mailboxes WHERE address = ANY (addresses);
    END IF;
    -- Not those that are being deleted: one would wait for whoever does.
    WITH kept AS MATERIALIZED (
        SELECT id FROM relay.mailboxes WHERE id = ANY (chosen) FOR KEY SHARE SKIP LOCKED
    ), taken AS (
        DELETE FROM relay.usage_changes
        WHERE mailbox_id = ANY (ARRAY(SELECT id FROM kept))
        RETURNING mailbox_id, messages, bytes, was_read
    )
    INSERT INTO relay.mailbox_usage AS u (mailbox_id, messages, bytes, was_read)
    SELECT mailbox_id, sum(messages), sum(bytes), coalesce(sum(was_read), 0)
    FROM taken
    GROUP BY mailbox_id
    ON CONFLICT (mailbox_id) DO UPDATE
    SET messages = u.messages + excluded.messages,
        bytes = u.bytes + excluded.bytes,
        was_read = u.was_read + excluded.was_read;
    GET DIAGNOSTICS folded = ROW_COUNT;
    RETURN folded;
END
$$;
