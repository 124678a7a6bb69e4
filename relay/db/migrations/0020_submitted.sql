-- Outbound messages that their authors wrote whole, and tags.
--
-- Promises
--   * A message that was submitted whole goes out byte for byte: it is the blob of its content, which
--     all its recipients share, and has neither text nor attachments.
--   * A tag is its author's word for a message: shown, and not sent.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.outbound_contents
    ADD COLUMN tag text CHECK (tag <> '');
COMMENT ON COLUMN relay.outbound_contents.blob IS
    'The bytes of attachments, or, where attachments is NULL, the message itself as its author wrote '
    'it: nothing is composed then, sender is the reverse-path and subject is for lists.';
COMMENT ON COLUMN relay.outbound_contents.tag IS 'Its author''s word for it; NULL: none.';

CREATE OR REPLACE VIEW relay.outbound_messages AS
    SELECT l.id,
           c.sender,
           l.recipient,
           c.subject,
           (ARRAY['high', 'normal', 'bulk'])[l.priority + 1] AS priority,
           CASE WHEN d.held_until IS NOT NULL THEN 'processing'
                WHEN d.run_at = 'infinity' THEN 'held'
                WHEN d.node IS NOT NULL AND d.run_at > now() THEN 'processing'
                ELSE 'queued' END AS status,
           l.created_at,
           d.attempt::integer AS attempts,
           CASE WHEN d.node IS NULL AND isfinite(d.run_at)
                     AND (d.attempt > 0 OR d.run_at > l.created_at)
                THEN d.run_at END AS next_retry_at,
           CASE WHEN d.node IS NOT NULL THEN d.claimed_at END AS processing_started_at,
           NULL::timestamptz AS sent_at,
           (SELECT t.error FROM relay.outbound_tries t
            WHERE t.message_id = d.id ORDER BY t.attempt DESC, t.at DESC LIMIT 1) AS error_log,
           l.owner,
           l.not_after,
           c.tag
    FROM relay.outbound_due d
    JOIN relay.outbound_letters l ON l.id = d.id
    JOIN relay.outbound_contents c ON c.id = l.content_id
    UNION ALL
    SELECT l.id,
           c.sender,
           l.recipient,
           c.subject,
           (ARRAY['high', 'normal', 'bulk'])[l.priority + 1],
           g.status,
           l.created_at,
           g.attempt::integer,
           NULL,
           g.claimed_at,
           CASE WHEN g.status = 'sent' THEN g.finished_at END,
           g.error,
           l.owner,
           l.not_after,
           c.tag
    FROM relay.outbound_log g
    JOIN relay.outbound_letters l ON l.id = g.id
    JOIN relay.outbound_contents c ON c.id = l.content_id;
