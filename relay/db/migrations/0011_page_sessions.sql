-- Page sessions: who is signed in to the operator's page, and which inboxes a browser opened.
--
-- Promises
--   * Of a session's two secrets (the cookie, and the key that the page alone holds) only hashes
--     are here, of 256 random bits each: nothing in the database, nor beside it, makes either.
--   * A row that goes is announced (`relay_sessions`), so what it has open ends at once, on every
--     relay that shares the database.  With a key's revocation its holder's sessions go.
--   * No backup revives a session: the tables are UNLOGGED, so they are in no write-ahead log, hence
--     in no base backup and on no standby; `relay db backup` leaves their rows out.
-- The price: a server that crashed, or a standby that was promoted, asks everybody to sign in again.
-- What it buys besides: signing in waits for no synchronous standby.

CREATE UNLOGGED TABLE relay.page_sessions (
    id            uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    kind          text NOT NULL CHECK (kind IN ('administrator', 'key', 'mailbox')),
    key_id        uuid REFERENCES relay.api_keys (id) ON DELETE CASCADE,
    token_hash    bytea CHECK (octet_length(token_hash) = 32),
    node          bytea CHECK (octet_length(node) = 32),
    cookie_hash   bytea NOT NULL UNIQUE CHECK (octet_length(cookie_hash) = 32),
    page_key_hash bytea NOT NULL CHECK (octet_length(page_key_hash) = 32),
    created_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at    timestamptz NOT NULL,
    CHECK ((kind = 'key') = (key_id IS NOT NULL)),
    CHECK ((kind = 'key') = (token_hash IS NULL)),
    CHECK ((kind = 'administrator') = (node IS NOT NULL))
);
COMMENT ON TABLE relay.page_sessions IS
    'Signed-in pages.  A row ends by sign-out, by age, or with the credential that opened it.';
COMMENT ON COLUMN relay.page_sessions.token_hash IS
    'Of an administrator: of the token of the start that let him in.  Of a mailbox: of its session '
    'token, whose rights the page has.';
COMMENT ON COLUMN relay.page_sessions.node IS
    'Of an administrator: which relay let him in.  Its next start, which has another token, ends it.';
CREATE INDEX page_sessions_expiry ON relay.page_sessions (expires_at);
CREATE INDEX page_sessions_key ON relay.page_sessions (key_id) WHERE key_id IS NOT NULL;
CREATE INDEX page_sessions_token ON relay.page_sessions (token_hash) WHERE token_hash IS NOT NULL;

CREATE UNLOGGED TABLE relay.page_links (
    code_hash  bytea PRIMARY KEY CHECK (octet_length(code_hash) = 32),
    token_hash bytea NOT NULL CHECK (octet_length(token_hash) = 32),
    node       bytea NOT NULL CHECK (octet_length(node) = 32),
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE relay.page_links IS
    'One-time codes that sign the administrator in; using one deletes its row.';

CREATE FUNCTION relay.page_sessions_ended() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    ended text;
BEGIN
    SELECT CASE WHEN count(*) > 100 THEN '*' ELSE string_agg(o.id::text, ',') END
    INTO ended
    FROM old_rows o;
    IF ended IS NOT NULL THEN
        PERFORM pg_notify('relay_sessions', ended);
    END IF;
    RETURN NULL;
END;
$$;
CREATE TRIGGER page_sessions_ended
    AFTER DELETE ON relay.page_sessions
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.page_sessions_ended();

-- As the owner: whoever may revoke a key need not be able to see who is signed in.
CREATE FUNCTION relay.end_sessions_of_key() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM relay.page_sessions
    WHERE key_id = NEW.id;
    RETURN NULL;
END;
$$;
CREATE TRIGGER api_keys_revoked
    AFTER UPDATE OF revoked_at ON relay.api_keys
    FOR EACH ROW
    WHEN (OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL)
    EXECUTE FUNCTION relay.end_sessions_of_key();
