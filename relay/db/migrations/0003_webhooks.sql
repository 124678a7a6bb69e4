-- Webhooks: who is told what, and what is still to be told.
--
-- Promises
--   * An event is made in the transaction that it tells of: neither without the other.
--   * It stays until its receiver has answered 2xx, or it was tried as often as mail is; whoever
--     posts it holds a token that only rises, so that a late answer changes nothing.
--   * Events hold no address, subject or text: what is posted is read when it is posted, so an
--     expired mailbox's mail is never told of.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.webhooks (
    id         uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    owner      uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    url        text NOT NULL CHECK (octet_length(url) <= 2048),
    events     text[] NOT NULL
               CHECK (events <@ ARRAY['message.delivered', 'message.failed', 'message.bounced']),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (owner, url)
);
COMMENT ON TABLE relay.webhooks IS
    'Where the owner of outbound mail is told what became of it; the nil uuid: the administrator '
    'and relay.send.';

CREATE TABLE relay.webhook_events (
    id          uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    kind        text NOT NULL,
    subject_id  uuid NOT NULL,
    signer      uuid NOT NULL,
    url         text NOT NULL,
    origin      text COLLATE "C" NOT NULL
                GENERATED ALWAYS AS (lower(COALESCE(substring(url FROM '^[^/]*//[^/?#]*'), ''))) STORED,
    detail      jsonb NOT NULL DEFAULT '{}',
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    token       bigint NOT NULL DEFAULT 0,
    attempt     smallint NOT NULL DEFAULT 0,
    given_up_at timestamptz,
    error       text
);
COMMENT ON TABLE relay.webhook_events IS
    'What is still to be told: run_at is when it is due, while it is being posted the end of its '
    'lease, and infinity once it was given up.  Told, it is deleted.';
COMMENT ON COLUMN relay.webhook_events.subject_id IS
    'An outbound message, or for message.arrived one of relay.messages.';
COMMENT ON COLUMN relay.webhook_events.signer IS
    'Whose secret signs: the owner''s, or for an anonymous mailbox the mailbox''s.';
-- The one index of the claim: the next of each receiver, so that one that hangs delays no other.
CREATE INDEX webhook_events_next ON relay.webhook_events (origin, run_at);
CREATE INDEX webhook_events_given_up ON relay.webhook_events (given_up_at)
    WHERE given_up_at IS NOT NULL;

-- Nearly empty, however many mailboxes there are.
CREATE INDEX mailboxes_webhook ON relay.mailboxes (id) WHERE webhook_url IS NOT NULL;

CREATE FUNCTION relay.webhooks_outbound() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    -- Who has no webhooks pays for one look into an empty table, a statement.
    IF NOT EXISTS (SELECT FROM relay.webhooks) THEN
        RETURN NULL;
    END IF;
    INSERT INTO relay.webhook_events (kind, subject_id, signer, url, detail)
    SELECT e.kind, e.id, w.owner, w.url,
           jsonb_build_object('attempts', e.attempt, 'code', e.code, 'error', e.error)
    FROM (SELECT n.id, n.attempt, n.code, n.error,
                 CASE n.status WHEN 'sent' THEN 'message.delivered'
                               WHEN 'failed' THEN 'message.failed'
                               WHEN 'bounced' THEN 'message.bounced' END AS kind
          FROM new_rows n) e
    JOIN relay.outbound_letters l ON l.id = e.id
    JOIN relay.webhooks w ON w.owner = l.owner AND e.kind = ANY (w.events);
    IF FOUND THEN
        PERFORM pg_notify('relay_webhooks', '');
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER webhooks_outbound AFTER INSERT ON relay.outbound_log
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.webhooks_outbound();

CREATE FUNCTION relay.webhooks_arrived() RETURNS trigger
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM relay.mailboxes WHERE webhook_url IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    INSERT INTO relay.webhook_events (kind, subject_id, signer, url)
    SELECT 'message.arrived', n.message_id, COALESCE(m.owner_id, m.id), m.webhook_url
    FROM new_rows n
    JOIN relay.mailboxes m ON m.id = n.mailbox_id
    WHERE m.webhook_url IS NOT NULL
      AND m.is_active
      AND m.expires_at > now();
    IF FOUND THEN
        PERFORM pg_notify('relay_webhooks', '');
    END IF;
    RETURN NULL;
END
$$;
-- On summaries rather than messages: what is posted names sender and subject.
CREATE TRIGGER webhooks_arrived AFTER INSERT ON relay.summaries
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.webhooks_arrived();
