-- What happens to accounts is told to webhooks: account.activated and account.recovered.
--
-- Promises
--   * As with mail, an event is made in the transaction that it tells of, and holds nobody's data:
--     what is posted is read when it is posted, and a deleted account is never told of.
--   * It goes to the webhooks of the account's owner; what SQL made is the administrator's.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.webhooks DROP CONSTRAINT webhooks_events_check;
ALTER TABLE relay.webhooks ADD CONSTRAINT webhooks_events_check
    CHECK (events <@ ARRAY['message.delivered', 'message.failed', 'message.bounced',
                           'message.expired', 'account.activated', 'account.recovered']);
COMMENT ON COLUMN relay.webhook_events.subject_id IS
    'An outbound message; for message.arrived one of relay.messages; for an account its number, '
    'as a uuid.';

CREATE FUNCTION relay.tell_of_account(p_kind text, p_account bigint) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO relay.webhook_events (kind, subject_id, signer, url)
    SELECT p_kind, lpad(to_hex(a.id), 32, '0')::uuid, w.owner, w.url
    FROM relay.accounts a
    JOIN relay.webhooks w
      ON w.owner = COALESCE(a.owner, '00000000-0000-0000-0000-000000000000')
     AND p_kind = ANY (w.events)
    WHERE a.id = p_account;
    IF FOUND THEN
        PERFORM pg_notify('relay_webhooks', '');
    END IF;
END
$$;
COMMENT ON FUNCTION relay.tell_of_account(text, bigint) IS
    'Makes an event for each webhook of the account''s owner that asked for such events.';
REVOKE EXECUTE ON FUNCTION relay.tell_of_account(text, bigint) FROM PUBLIC;

-- As the owner of the schema, like the other triggers: whoever may change an account need not be
-- able to write events.
CREATE FUNCTION relay.trg_after_account_activated() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM relay.tell_of_account('account.activated', NEW.id);
    RETURN NULL;
END
$$;
-- By its token or by SQL; the end of a suspension is none.
CREATE TRIGGER after_account_activated AFTER UPDATE OF status ON relay.accounts
    FOR EACH ROW
    WHEN (OLD.status = 'provisioned' AND NEW.status = 'active')
    EXECUTE FUNCTION relay.trg_after_account_activated();

CREATE FUNCTION relay.trg_after_account_recovered() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM relay.tell_of_account('account.recovered', NEW.account);
    RETURN NULL;
END
$$;
CREATE TRIGGER after_account_recovered AFTER UPDATE OF consumed_at ON relay.tokens
    FOR EACH ROW
    WHEN (NEW.action = 'password_recovery' AND NEW.consumed_at IS NOT NULL
          AND OLD.consumed_at IS NULL)
    EXECUTE FUNCTION relay.trg_after_account_recovered();

REVOKE EXECUTE ON FUNCTION
    relay.trg_after_account_activated(), relay.trg_after_account_recovered()
FROM PUBLIC;
