-- Searching all mailboxes at once: chunks over all of them.
--
-- Promises
--   * A chunk is a run of summaries of all mailboxes, (after_seq, last_seq], with a filter of their
--     texts, as relay.search_chunks has them of one large mailbox.  Every summary up to the highest
--     last_seq is in one: none is made beyond relay.settled_seq().
--   * A filter may say "perhaps" of what was deleted or is over, never "no" of what is there.
--   * Chunks are made when there is time; without 512 messages there are none.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.common_chunks (
    last_seq  bigint PRIMARY KEY,
    after_seq bigint NOT NULL,
    newest_id uuid NOT NULL,
    filter    bytea NOT NULL
);
COMMENT ON TABLE relay.common_chunks IS
    'Runs of the summaries of all mailboxes, the highest of their ids, what they cannot contain.';
ALTER TABLE relay.common_chunks ALTER COLUMN filter SET STORAGE EXTERNAL;
ALTER TABLE relay.common_chunks SET (toast_tuple_target = 8160);

CREATE OR REPLACE FUNCTION relay.messages_count_truncate() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM relay.usage_changes;
    DELETE FROM relay.mailbox_usage;
    DELETE FROM relay.search_chunks;  -- seq may begin anew
    DELETE FROM relay.common_chunks;
    RETURN NULL;
END
$$;
