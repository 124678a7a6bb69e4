-- Summaries that cost PostgreSQL little, and leases of what is being parsed.
--
-- Headers, attachments and links are only ever shown together, with the whole message.  They are one
-- text now, a JSON object that the parser writes and a reader's client reads: as jsonb each was taken
-- apart, put together and, as a rule, compressed, twice the work of all the rest of the statement.
-- Rows of before keep what they have in the old columns; nothing is rewritten.
ALTER TABLE relay.summaries
    ADD COLUMN details text,
    ALTER COLUMN headers DROP NOT NULL,
    ALTER COLUMN headers DROP DEFAULT,
    ALTER COLUMN attachments DROP NOT NULL,
    ALTER COLUMN attachments DROP DEFAULT,
    ALTER COLUMN links DROP NOT NULL,
    ALTER COLUMN links DROP DEFAULT;
COMMENT ON COLUMN relay.summaries.details IS
    'A JSON object: headers, attachments, links.  NULL in rows of before, which have the columns.';

-- Texts are stored as they are, as raw mail is: to compress the HTML of a newsletter takes longer than
-- all the rest of the statement, for rows that are gone within the hour as a rule.  The summary of
-- an ordinary message stays in the heap (two fit a page at least).
ALTER TABLE relay.summaries
    ALTER COLUMN details SET STORAGE EXTERNAL,
    ALTER COLUMN body_text SET STORAGE EXTERNAL,
    ALTER COLUMN body_html SET STORAGE EXTERNAL;
ALTER TABLE relay.summaries SET (toast_tuple_target = 4064);

-- What each parser has in hand, so that two nodes do not parse the same.  A hint, never a promise:
-- what is parsed twice is stored once.  So it needs no log, and is empty after a crash.
CREATE UNLOGGED TABLE relay.parse_leases (
    node        uuid NOT NULL,
    parser      smallint NOT NULL,
    message_ids uuid[] NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (node, parser)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 1000);
COMMENT ON TABLE relay.parse_leases IS
    'What each parser has in hand, a row a parser; other nodes leave it alone until expires_at.';
