-- Chunks in the order in which searches go through them, newest mail first, and what they read.
--
-- Promises
--   * A search that has enough asks no more filters: it sorts nothing, and looks nothing up twice.
--   * A chunk says whether any recipient in it may be another than its mailbox's address (as only
--     what was stored by SQL has it); of the others a search for text reads summaries alone.
--   * Messages cost nothing more: a chunk, which is made of many, has one more entry in an index.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.common_chunks ADD COLUMN some_readdressed boolean NOT NULL DEFAULT true;

CREATE INDEX common_chunks_newest ON relay.common_chunks (newest_id DESC, last_seq DESC);
CREATE INDEX search_chunks_newest
    ON relay.search_chunks (mailbox_id, newest_at DESC, last_seq DESC);
