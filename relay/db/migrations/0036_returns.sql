-- What comes back of mail that was sent: bounces, delays, complaints.
--
-- Promises
--   * What came to a return path is here before it is acknowledged, and goes in the transaction that
--     does what it says; so a crash loses nothing and does nothing twice.
--   * A report counts once for each attempt of a message, however often it comes.
--   * A suppression says why it is there; those of before are somebody's own doing: manual.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.suppressions ADD COLUMN cause text NOT NULL DEFAULT 'manual'
    CHECK (cause IN ('manual', 'bounced', 'complained', 'unsubscribed'));
COMMENT ON COLUMN relay.suppressions.cause IS
    'What put it there: somebody by hand, a bounce (no such address, or a mailbox that stays full), '
    'a complaint, or the recipient, who unsubscribed (from the owner''s bulk mail).';

ALTER TABLE relay.webhooks DROP CONSTRAINT webhooks_events_check;
ALTER TABLE relay.webhooks ADD CONSTRAINT webhooks_events_check
    CHECK (events <@ ARRAY['message.delivered', 'message.failed', 'message.bounced',
                           'message.expired', 'message.delayed', 'message.complained',
                           'message.unsubscribed', 'account.activated', 'account.recovered']);

CREATE TABLE relay.returns (
    id          uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    message_id  uuid,
    raw         bytea NOT NULL,
    received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    run_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempt     smallint NOT NULL DEFAULT 0
);
COMMENT ON TABLE relay.returns IS
    'Mail that came to return paths and was not looked at yet; done with, it is deleted.';
COMMENT ON COLUMN relay.returns.message_id IS
    'The outbound message whose return path it came to; NULL: to the address for complaints.';
COMMENT ON COLUMN relay.returns.run_at IS 'When it is to be looked at; later while somebody does.';
CREATE INDEX returns_next ON relay.returns (run_at);
-- Reports carry the message that they are about: compressed it would be for nothing.
ALTER TABLE relay.returns ALTER COLUMN raw SET STORAGE EXTERNAL;

CREATE FUNCTION relay.returns_came() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('relay_returns', '');
    RETURN NULL;
END;
$$;
COMMENT ON FUNCTION relay.returns_came() IS 'Announces that something came back.';
CREATE TRIGGER returns_came AFTER INSERT ON relay.returns
    FOR EACH STATEMENT EXECUTE FUNCTION relay.returns_came();

CREATE TABLE relay.outbound_reports (
    message_id uuid NOT NULL,
    attempt    smallint NOT NULL,
    kind       text NOT NULL CHECK (kind IN ('bounced', 'delayed', 'complained')),
    owner      uuid NOT NULL,
    address    text COLLATE "C" NOT NULL,
    is_full    boolean NOT NULL DEFAULT false,
    enhanced   text,
    error      text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (message_id, attempt, kind)
);
COMMENT ON TABLE relay.outbound_reports IS
    'What was reported of messages after they were sent; kept as long as full mailboxes are counted.';
COMMENT ON COLUMN relay.outbound_reports.attempt IS 'Which attempt had sent it.';
COMMENT ON COLUMN relay.outbound_reports.is_full IS 'Whether it bounced because a mailbox was full.';
CREATE INDEX outbound_reports_full ON relay.outbound_reports (address, owner, created_at)
    WHERE is_full;
CREATE INDEX outbound_reports_age ON relay.outbound_reports (created_at);
