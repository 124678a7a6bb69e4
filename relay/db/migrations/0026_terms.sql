-- Searching all mailboxes by what is no text: tags, sizes, times, attachments, read or unread.
--
-- Promises
--   * relay.tagged has each tag of each summary, in lower case, whoever writes relay.summaries.
--   * A chunk says of its messages what their ids, times and sizes lie between, and whether some
--     have attachments and some have none; it may say so of what was deleted, never less.
--   * Mail without tags costs nothing more; each message has one more entry in an index.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.tagged (
    tag        text NOT NULL,
    message_id uuid NOT NULL,
    PRIMARY KEY (tag, message_id)
);
COMMENT ON TABLE relay.tagged IS
    'The tags of relay.summaries in lower case, for searches; kept by triggers there.';

CREATE FUNCTION relay.summaries_tagged() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        DELETE FROM relay.tagged
        WHERE message_id = OLD.message_id
          AND tag = ANY (lower(OLD.tags::text)::text[]);
    END IF;
    IF TG_OP <> 'DELETE' THEN
        INSERT INTO relay.tagged (tag, message_id)
        SELECT DISTINCT one, NEW.message_id
        FROM unnest(lower(NEW.tags::text)::text[]) one
        WHERE one IS NOT NULL
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER summaries_tagged AFTER INSERT ON relay.summaries
    FOR EACH ROW WHEN (NEW.tags IS NOT NULL) EXECUTE FUNCTION relay.summaries_tagged();
CREATE TRIGGER summaries_retagged AFTER UPDATE OF tags, message_id ON relay.summaries
    FOR EACH ROW WHEN (OLD.tags IS DISTINCT FROM NEW.tags OR OLD.message_id <> NEW.message_id)
    EXECUTE FUNCTION relay.summaries_tagged();
CREATE TRIGGER summaries_untagged AFTER DELETE ON relay.summaries
    FOR EACH ROW WHEN (OLD.tags IS NOT NULL) EXECUTE FUNCTION relay.summaries_tagged();
INSERT INTO relay.tagged (tag, message_id)
SELECT DISTINCT one, s.message_id
FROM relay.summaries s
CROSS JOIN LATERAL unnest(lower(s.tags::text)::text[]) one
WHERE one IS NOT NULL;

CREATE INDEX messages_unread ON relay.messages (id) WHERE NOT is_read;
CREATE INDEX messages_read ON relay.messages (id) WHERE is_read;

TRUNCATE relay.common_chunks;  -- the summariser makes them anew
ALTER TABLE relay.common_chunks
    ADD COLUMN oldest_id uuid NOT NULL,
    ADD COLUMN oldest_at timestamptz NOT NULL,
    ADD COLUMN newest_at timestamptz NOT NULL,
    ADD COLUMN smallest bigint NOT NULL,
    ADD COLUMN largest bigint NOT NULL,
    ADD COLUMN some_attached boolean NOT NULL,
    ADD COLUMN some_plain boolean NOT NULL;
COMMENT ON TABLE relay.common_chunks IS
    'Runs of the summaries of all mailboxes: what their ids, times and sizes lie between, whether '
    'some have attachments and some none, and what they cannot contain.';

CREATE OR REPLACE FUNCTION relay.messages_count_truncate() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM relay.usage_changes;
    DELETE FROM relay.mailbox_usage;
    DELETE FROM relay.search_chunks;  -- seq may begin anew
    DELETE FROM relay.common_chunks;
    DELETE FROM relay.tagged;
    RETURN NULL;
END
$$;
