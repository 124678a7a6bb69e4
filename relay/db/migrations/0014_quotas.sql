-- Quotas of plans, and the counts that they and the lists go by.
--
-- Promises
--   * What a mailbox holds (messages, bytes) is known without looking at its messages: its row in
--     mailbox_usage and what usage_changes says since, read in one statement, are exact in every
--     snapshot, whoever changed messages, in SQL too.
--   * Nobody waits for a count: changes are appended, never written into a row that others hold.
--     Folding them into mailbox_usage is one transaction of its own, and skips what is locked.
--   * A mailbox that is deleted takes its counts along.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.plans
    ADD COLUMN max_mailboxes integer CHECK (max_mailboxes >= 0),
    ADD COLUMN max_messages  integer CHECK (max_messages >= 0),
    ADD COLUMN max_bytes     bigint CHECK (max_bytes >= 0);
COMMENT ON COLUMN relay.plans.max_mailboxes IS
    'Live mailboxes of one owner; of plan free, of one source address that makes them without a '
    'key, too.  NULL: no limit.';
COMMENT ON COLUMN relay.plans.max_messages IS 'Messages in one mailbox.  NULL: no limit.';
COMMENT ON COLUMN relay.plans.max_bytes IS 'Bytes of the raw messages in one mailbox.  NULL: no limit.';
UPDATE relay.plans SET (max_mailboxes, max_messages, max_bytes) = (1000, 100000, 1::bigint << 30)
WHERE name = 'free';
UPDATE relay.plans SET (max_mailboxes, max_messages, max_bytes) = (10000, 1000000, 10::bigint << 30)
WHERE name = 'pro';
UPDATE relay.plans SET (max_mailboxes, max_messages, max_bytes) = (100000, 10000000, 100::bigint << 30)
WHERE name = 'enterprise';

-- Who made an anonymous mailbox ------------------------------------------------------------------

ALTER TABLE relay.mailboxes ADD COLUMN source bytea CHECK (octet_length(source) = 16);
COMMENT ON COLUMN relay.mailboxes.source IS
    'A keyed hash of the address (of IPv6 its /64) that made an anonymous mailbox over HTTP.';
-- How many live ones somebody has.  A row leaves these with its flip, so the dead cost nothing.
CREATE INDEX mailboxes_source_live ON relay.mailboxes (source, expires_at)
    WHERE is_active AND source IS NOT NULL;
CREATE INDEX mailboxes_owner_live ON relay.mailboxes (owner_id, expires_at)
    WHERE is_active AND owner_id IS NOT NULL;

-- What a mailbox holds ---------------------------------------------------------------------------

CREATE TABLE relay.mailbox_usage (
    mailbox_id uuid PRIMARY KEY,
    messages   bigint NOT NULL,
    bytes      bigint NOT NULL
) WITH (fillfactor = 70);
COMMENT ON TABLE relay.mailbox_usage IS
    'What mailboxes held when their changes were folded last; relay.usage_changes has the rest.';

CREATE TABLE relay.usage_changes (
    mailbox_id uuid NOT NULL,
    messages   integer NOT NULL,
    bytes      bigint NOT NULL
);
COMMENT ON TABLE relay.usage_changes IS
    'What came and went since, one row a statement and mailbox; relay.fold_usage empties it.';
CREATE INDEX usage_changes_mailbox ON relay.usage_changes (mailbox_id);
ALTER TABLE relay.usage_changes SET (
    autovacuum_vacuum_scale_factor = 0.2,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

INSERT INTO relay.mailbox_usage (mailbox_id, messages, bytes)
SELECT mailbox_id, count(*), sum(size) FROM relay.messages GROUP BY mailbox_id;

-- Row level, because a transition table would copy raw_email into memory.  The relay's own writer
-- says `relay.counted`: its statement does the same for all its rows at once, at a tenth of the
-- cost (relay/mailboxes/accept.py).
CREATE OR REPLACE FUNCTION relay.messages_queue() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.unsummarised (message_id, mailbox_id, size)
    VALUES (NEW.id, NEW.mailbox_id, NEW.size)
    ON CONFLICT DO NOTHING;
    INSERT INTO relay.usage_changes (mailbox_id, messages, bytes)
    VALUES (NEW.mailbox_id, 1, NEW.size);
    RETURN NULL;
END
$$;
DROP TRIGGER messages_queue ON relay.messages;
CREATE TRIGGER messages_queue AFTER INSERT ON relay.messages
    FOR EACH ROW
    WHEN (current_setting('relay.counted', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION relay.messages_queue();

CREATE FUNCTION relay.messages_count_update() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.usage_changes (mailbox_id, messages, bytes)
    VALUES (OLD.mailbox_id, -1, -OLD.size), (NEW.mailbox_id, 1, NEW.size);
    RETURN NULL;
END
$$;
CREATE TRIGGER messages_count_update AFTER UPDATE OF mailbox_id, raw_email ON relay.messages
    FOR EACH ROW
    WHEN ((OLD.mailbox_id, OLD.size) IS DISTINCT FROM (NEW.mailbox_id, NEW.size))
    EXECUTE FUNCTION relay.messages_count_update();

-- Deleted rows hold large mail by a pointer, so these tables are small.
CREATE FUNCTION relay.messages_count_delete() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.usage_changes (mailbox_id, messages, bytes)
    SELECT o.mailbox_id, -count(*), -sum(o.size)
    FROM old_rows o
    -- Gone with its mailbox: the counts went, too.
    WHERE EXISTS (SELECT FROM relay.mailboxes b WHERE b.id = o.mailbox_id)
    GROUP BY o.mailbox_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER messages_count_delete AFTER DELETE ON relay.messages
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.messages_count_delete();

CREATE FUNCTION relay.messages_count_truncate() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM relay.usage_changes;
    DELETE FROM relay.mailbox_usage;
    RETURN NULL;
END
$$;
CREATE TRIGGER messages_count_truncate AFTER TRUNCATE ON relay.messages
    FOR EACH STATEMENT EXECUTE FUNCTION relay.messages_count_truncate();

CREATE FUNCTION relay.mailboxes_forget_usage() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM relay.usage_changes
    WHERE mailbox_id = ANY (ARRAY(SELECT id FROM old_rows));
    DELETE FROM relay.mailbox_usage
    WHERE mailbox_id = ANY (ARRAY(SELECT id FROM old_rows));
    RETURN NULL;
END
$$;
CREATE TRIGGER mailboxes_forget_usage AFTER DELETE ON relay.mailboxes
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.mailboxes_forget_usage();

-- Only one at a time, wherever: whoever comes second leaves.
CREATE FUNCTION relay.fold_usage(addresses text[] DEFAULT NULL, at_least integer DEFAULT 16)
RETURNS bigint
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
        RETURNING mailbox_id, messages, bytes
    )
    INSERT INTO relay.mailbox_usage AS u (mailbox_id, messages, bytes)
    SELECT mailbox_id, sum(messages), sum(bytes) FROM taken GROUP BY mailbox_id
    ON CONFLICT (mailbox_id) DO UPDATE
    SET messages = u.messages + excluded.messages, bytes = u.bytes + excluded.bytes;
    GET DIAGNOSTICS folded = ROW_COUNT;
    RETURN folded;
END
$$;
COMMENT ON FUNCTION relay.fold_usage(text[], integer) IS
    'Adds what usage_changes says of these addresses (NULL: of mailboxes with `at_least` rows there) to '
    'mailbox_usage; returns how many mailboxes.  Counts are right before and after.';
