-- Searching a mailbox that holds very much.
--
-- Promises
--   * A chunk is a run of summaries of one mailbox, (after_seq, last_seq], with a filter of their
--     texts (relay/mailboxes/grams.py).  Every summary up to the mailbox's highest last_seq is in
--     at least one: summaries become visible in the order of seq, and a chunk begins where the last
--     visible one ends.
--   * A filter holds no text.  It may say "perhaps" of what is not there, never "no" of what is.
--   * Chunks are made when there is time, and for large mailboxes alone: accepting and summarising
--     cost what they cost before.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.search_chunks (
    mailbox_id uuid NOT NULL REFERENCES relay.mailboxes (id) ON DELETE CASCADE,
    last_seq   bigint NOT NULL,
    after_seq  bigint NOT NULL,
    oldest_at  timestamptz NOT NULL,
    newest_at  timestamptz NOT NULL,
    filter     bytea NOT NULL,
    PRIMARY KEY (mailbox_id, last_seq)
);
COMMENT ON TABLE relay.search_chunks IS
    'Runs of a mailbox''s summaries, when their messages came, and what they cannot contain.';
-- Uncompressed, and what does not fit into a page out of line: one bit is read without the rest.
ALTER TABLE relay.search_chunks ALTER COLUMN filter SET STORAGE EXTERNAL;
ALTER TABLE relay.search_chunks SET (toast_tuple_target = 8160);

-- What relay.mailboxes.grams.holds is in Python: whether all these bits are set.
CREATE FUNCTION relay.filter_holds(filter bytea, asked bigint[]) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
DECLARE
    bits CONSTANT bigint := 8 * octet_length(filter);
    place bigint;
BEGIN
    FOREACH place IN ARRAY asked LOOP
        place := place % bits;
        IF get_byte(substr(filter, (place >> 3)::integer + 1, 1), 0) >> (place & 7)::integer & 1 = 0
        THEN
            RETURN false;
        END IF;
    END LOOP;
    RETURN true;
END
$$;

CREATE OR REPLACE FUNCTION relay.messages_count_truncate() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM relay.usage_changes;
    DELETE FROM relay.mailbox_usage;
    DELETE FROM relay.search_chunks;  -- seq may begin anew
    RETURN NULL;
END
$$;
