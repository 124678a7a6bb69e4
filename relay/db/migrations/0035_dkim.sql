-- Keys of DKIM: what leaves is signed for the domains that have some.
--
-- Promises
--   * A private key is here encrypted, and no longer than it signs: it goes when the key is retired.
--     What is published stays, for as long as what it signed may still be verified.
--   * A domain has at most one active and one standby key of each algorithm; a selector is one
--     key's, ever, as long as its row is there.
--   * Every change is announced (`relay_dkim`), for the senders of all nodes keep keys in memory.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.dkim_keys (
    id           uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    domain       text COLLATE "C" NOT NULL CHECK (domain = lower(domain)),
    selector     text COLLATE "C" NOT NULL CHECK (selector = lower(selector)),
    algorithm    text NOT NULL CHECK (algorithm IN ('rsa-sha256', 'ed25519-sha256')),
    state        text NOT NULL CHECK (state IN ('standby', 'active', 'retired')),
    record       text NOT NULL,
    private_key  bytea,
    key_id       bytea,
    created_at   timestamptz NOT NULL DEFAULT now(),
    activated_at timestamptz,
    retired_at   timestamptz,
    UNIQUE (domain, selector),
    CHECK ((private_key IS NULL) = (state = 'retired')),
    CHECK ((key_id IS NULL) = (private_key IS NULL)),
    CHECK ((retired_at IS NOT NULL) = (state = 'retired')),
    CHECK ((activated_at IS NULL) = (state = 'standby'))
);
COMMENT ON TABLE relay.dkim_keys IS
    'Keys of DKIM.  state (the words of RFC 7583): a standby key is published and does not sign '
    'yet, an active one signs, a retired one no longer does, and must stay published for a while.';
COMMENT ON COLUMN relay.dkim_keys.record IS
    'What the domain publishes as TXT at selector._domainkey.domain.';
COMMENT ON COLUMN relay.dkim_keys.private_key IS
    'Encrypted (Fernet); id is inside the plaintext, so that keys cannot be swapped by SQL.';
COMMENT ON COLUMN relay.dkim_keys.key_id IS
    'Which encryption key made private_key: what rotation has still to do.';
CREATE UNIQUE INDEX dkim_keys_one ON relay.dkim_keys (domain, algorithm, state)
    WHERE state <> 'retired';

CREATE FUNCTION relay.dkim_keys_changed() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('relay_dkim', '');
    RETURN NULL;
END;
$$;
COMMENT ON FUNCTION relay.dkim_keys_changed() IS
    'Announces that keys of DKIM were made, activated, retired, removed or encrypted anew.';
CREATE TRIGGER dkim_keys_changed
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON relay.dkim_keys
    FOR EACH STATEMENT EXECUTE FUNCTION relay.dkim_keys_changed();
