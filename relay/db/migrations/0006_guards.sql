-- What a product's role may say in an INSERT, and the scope of accounts.
--
-- Promises
--   * A role that may only INSERT into accounts or tokens makes nothing but what the documents'
--     life cycle begins with: a provisioned account of nobody's, an unused token of 15 minutes.
--   * A column that a role could change afterwards (the privilege UPDATE on it) it may also set.
--   * API keys reach accounts by the scope `accounts`, no longer by `send`.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.api_keys
    DROP CONSTRAINT api_keys_scopes_check,
    ADD CONSTRAINT api_keys_scopes_check
        CHECK (scopes <@ ARRAY['read', 'send', 'accounts', 'admin']);

-- Not SECURITY DEFINER, unlike the other triggers: current_user is whoever inserts.  The relay's
-- own triggers insert tokens as the owner, who may everything.
CREATE FUNCTION relay.trg_guard_insert() RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    guarded text;
BEGIN
    FOREACH guarded IN ARRAY TG_ARGV LOOP
        IF NOT has_column_privilege(TG_RELID, guarded, 'UPDATE') THEN
            RAISE EXCEPTION 'role % may not insert this value of %.%.%: it lacks UPDATE (%)',
                quote_ident(current_user), TG_TABLE_SCHEMA, TG_TABLE_NAME, guarded, guarded
                USING ERRCODE = 'insufficient_privilege';
        END IF;
    END LOOP;
    RETURN NEW;
END
$$;

-- The names put the guards before before_account_insert, which fills in time stamps.
CREATE TRIGGER a_guard_status BEFORE INSERT ON relay.accounts
    FOR EACH ROW
    -- Unsuspending believes activated_at: an account that has it was active before.
    WHEN (NEW.status <> 'provisioned' OR NEW.activated_at IS NOT NULL
          OR NEW.suspended_at IS NOT NULL OR NEW.unsuspended_at IS NOT NULL
          OR NEW.status_changed_at IS NOT NULL)
    EXECUTE FUNCTION relay.trg_guard_insert('status');
CREATE TRIGGER a_guard_owner BEFORE INSERT ON relay.accounts
    FOR EACH ROW
    WHEN (NEW.owner IS NOT NULL)
    EXECUTE FUNCTION relay.trg_guard_insert('owner');

-- A token's time stamps are what new_token counts by, and what ends it.
CREATE TRIGGER a_guard_consumed BEFORE INSERT ON relay.tokens
    FOR EACH ROW
    WHEN (NEW.consumed_at IS NOT NULL)
    EXECUTE FUNCTION relay.trg_guard_insert('consumed_at');
CREATE TRIGGER a_guard_expiry BEFORE INSERT ON relay.tokens
    FOR EACH ROW
    WHEN (NEW.expires_at > floor(extract(epoch FROM now())) + 900
          OR NEW.created_at <> floor(extract(epoch FROM now())))
    EXECUTE FUNCTION relay.trg_guard_insert('expires_at');
