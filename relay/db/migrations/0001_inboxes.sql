-- Expiring inboxes: plans, keys, mailboxes, messages, summaries, leases.
--
-- Promises
--   * A message belongs to exactly one mailbox and disappears with it (ON DELETE CASCADE).
--   * `is_active AND expires_at > now()` is the whole law of a live mailbox.  The flag is state
--     that the ticker keeps; the time stamp is what every statement enforces.
--   * Only hashes of tokens are stored.
--   * Rows inserted, changed or deleted by plain SQL behave like the relay's own: triggers queue
--     them for summaries and announce changes of mailboxes.
--   * Every announcement is a hint, at most one a statement; the tables are the truth.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE SCHEMA IF NOT EXISTS relay;

-- Identifiers ---------------------------------------------------------------------------------

-- UUID version 7 (RFC 9562, section 5.7): 48 bits of Unix milliseconds, then 74 random bits.
-- Rows made at about the same time lie together in every index, and `ORDER BY id` is by age.
CREATE FUNCTION relay.uuidv7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    SELECT encode(
        set_bit(
            set_bit(
                overlay(
                    uuid_send(gen_random_uuid())
                    PLACING substring(
                        int8send(floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                    FROM 1 FOR 6),
                52, 1),     -- version 4 is 0100; these two bits make it 0111
            53, 1),
        'hex')::uuid
$$;
COMMENT ON FUNCTION relay.uuidv7() IS 'A time-ordered UUID (version 7).';

-- Plans, keys, domains ------------------------------------------------------------------------

CREATE TABLE relay.plans (
    name                text PRIMARY KEY,
    default_ttl_minutes integer NOT NULL CHECK (default_ttl_minutes > 0),
    max_ttl_minutes     integer NOT NULL CHECK (max_ttl_minutes > 0),
    calls_per_second    real NOT NULL DEFAULT 100 CHECK (calls_per_second >= 0),
    CHECK (default_ttl_minutes <= max_ttl_minutes)
);
COMMENT ON TABLE relay.plans IS
    'How long a mailbox may live: min(asked or default_ttl_minutes, max_ttl_minutes).';
COMMENT ON COLUMN relay.plans.calls_per_second IS
    'How often one key of the plan may call over HTTP, ten seconds'' worth at once; 0: no limit.';
INSERT INTO relay.plans (name, default_ttl_minutes, max_ttl_minutes, calls_per_second)
VALUES ('free', 60, 60, 100), ('pro', 1440, 1440, 500), ('enterprise', 10080, 10080, 2000);

CREATE TABLE relay.api_keys (
    id         uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    owner      text NOT NULL CHECK (owner <> ''),
    scopes     text[] NOT NULL CHECK (scopes <@ ARRAY['read', 'send', 'admin']),
    plan       text NOT NULL DEFAULT 'free' REFERENCES relay.plans (name),
    token_hash bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    created_at timestamptz NOT NULL DEFAULT now(),
    revoked_at timestamptz
);
COMMENT ON TABLE relay.api_keys IS
    'API keys; token_hash is the SHA-256 of a token with 256 random bits, shown once.';

CREATE TABLE relay.domains (
    name     text COLLATE "C" PRIMARY KEY CHECK (name = lower(name) AND name <> ''),
    position integer NOT NULL
);
COMMENT ON TABLE relay.domains IS
    'The domains of the relay that started last (its setting smtp.domains), in its order; '
    'relay.create_mailbox uses the first.';
INSERT INTO relay.domains (name, position) VALUES ('relay.localhost', 0);

-- Mailboxes -----------------------------------------------------------------------------------

CREATE TYPE relay.owner_type AS ENUM ('anonymous', 'api', 'mcp');

CREATE TABLE relay.mailboxes (
    id          uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    address     text COLLATE "C" NOT NULL UNIQUE,
    plan        text NOT NULL DEFAULT 'free',
    owner_type  relay.owner_type NOT NULL DEFAULT 'anonymous',
    owner_id    uuid,
    token_hash  bytea CHECK (octet_length(token_hash) = 32),
    webhook_url text CHECK (octet_length(webhook_url) <= 2048),
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL DEFAULT now() + interval '60 minutes',
    is_active   boolean NOT NULL DEFAULT true,
    closed_at   timestamptz,
    -- One spelling per mailbox, so that the unique index and every look-up compare bytes.
    CONSTRAINT mailboxes_address_canonical CHECK (address = lower(address)),
    CONSTRAINT mailboxes_address_length CHECK (octet_length(address) <= 254),
    CONSTRAINT mailboxes_address_shape CHECK (address ~ '^[^@[:cntrl:][:space:]]{1,64}@[^@[:cntrl:][:space:]]+$'),
    CONSTRAINT mailboxes_expiry_finite CHECK (isfinite(expires_at))
);
COMMENT ON TABLE relay.mailboxes IS
    'CREATE -> ACTIVE -> EXPIRED -> DELETED.  Live means is_active AND expires_at > now().';
COMMENT ON COLUMN relay.mailboxes.owner_id IS
    'An api_keys.id; the nil uuid for the administrator; NULL for an anonymous mailbox.';
COMMENT ON COLUMN relay.mailboxes.token_hash IS
    'SHA-256 of the session token of an anonymous mailbox; NULL when a key owns it.';
COMMENT ON COLUMN relay.mailboxes.closed_at IS
    'When is_active became false (kept by a trigger); retention counts from here.';

-- What the ticker flips next.  A row leaves this index with its flip.  The id makes the order
-- total, so that a batch can start behind the one before even where a million share an instant.
CREATE INDEX mailboxes_due ON relay.mailboxes (expires_at, id) WHERE is_active;
-- What the reaper deletes next.
CREATE INDEX mailboxes_closed ON relay.mailboxes (closed_at) WHERE NOT is_active;
-- An owner's list, newest first.  The administrator's list of all walks the primary key.
CREATE INDEX mailboxes_owner ON relay.mailboxes (owner_id, id DESC) WHERE owner_id IS NOT NULL;

-- Every mailbox is updated once and later deleted: a twentieth of the table dead is enough.
ALTER TABLE relay.mailboxes SET (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_analyze_scale_factor = 0.05
);

-- Messages ------------------------------------------------------------------------------------

CREATE TABLE relay.messages (
    id           uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    mailbox_id   uuid NOT NULL REFERENCES relay.mailboxes (id) ON DELETE CASCADE,
    received_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    reverse_path text NOT NULL DEFAULT '',
    recipient    text,
    raw_email    bytea NOT NULL,
    is_read      boolean NOT NULL DEFAULT false,
    size         integer NOT NULL GENERATED ALWAYS AS (octet_length(raw_email)) STORED
);
COMMENT ON TABLE relay.messages IS
    'One row a mailbox and message; raw_email is byte for byte what was accepted.';
COMMENT ON COLUMN relay.messages.id IS
    'UUIDv7 made before the INSERT, so that an INSERT repeated after a lost reply changes nothing.';
COMMENT ON COLUMN relay.messages.recipient IS
    'The RCPT address in its canonical spelling; NULL: the address of the mailbox.';
COMMENT ON COLUMN relay.messages.size IS 'Bytes of raw_email; computed, never given.';

-- Mail rarely compresses well and is read whole: no CPU for it (EXTERNAL).  Up to a page it
-- stays in the heap, which saves a second table and a second index for ordinary mail.
ALTER TABLE relay.messages ALTER COLUMN raw_email SET STORAGE EXTERNAL;
ALTER TABLE relay.messages SET (
    toast_tuple_target = 8160,
    -- Rows are inserted, read and deleted: keep the visibility map fresh for message_count.
    autovacuum_vacuum_insert_scale_factor = 0.05,
    autovacuum_vacuum_scale_factor = 0.05
);

-- A mailbox's list, newest first, and its count.
CREATE INDEX messages_mailbox ON relay.messages (mailbox_id, received_at DESC, id DESC);

-- What parsing found.  A table of its own, insert-only: storing it never rewrites the raw row.
CREATE TABLE relay.summaries (
    message_id      uuid PRIMARY KEY REFERENCES relay.messages (id) ON DELETE CASCADE,
    mailbox_id      uuid NOT NULL,
    -- Rises in the order in which the summaries of one mailbox become visible: the statement
    -- that stores them holds a lock per mailbox while it draws numbers and commits, so a reader
    -- that has seen n has seen everything below n (a plain sequence lacks this).
    seq             bigint GENERATED ALWAYS AS IDENTITY,
    from_address    text,
    subject         text,
    has_attachments boolean NOT NULL DEFAULT false,
    body_text       text,
    body_html       text,
    headers         jsonb NOT NULL DEFAULT '[]',
    attachments     jsonb NOT NULL DEFAULT '[]',
    otp             text,
    links           jsonb NOT NULL DEFAULT '[]',
    error           text
);
COMMENT ON TABLE relay.summaries IS
    'The parsed view of a message, stored after acceptance; error says why it is partial.';
COMMENT ON COLUMN relay.summaries.seq IS
    'Order of becoming readable within a mailbox; cursor of wait and of the event streams.';
-- wait and the event streams read on from a number.
CREATE INDEX summaries_mailbox ON relay.summaries (mailbox_id, seq);
ALTER TABLE relay.summaries SET (autovacuum_vacuum_scale_factor = 0.05);

-- What still needs parsing.  No foreign key: it would cost every accepted message a look-up,
-- and a row whose message is gone is simply dropped by the summariser.
CREATE TABLE relay.unsummarised (
    message_id uuid PRIMARY KEY
);
COMMENT ON TABLE relay.unsummarised IS
    'Messages without a summary yet; filled by a trigger, emptied by the summariser.';
-- A queue: every row is deleted within a second, so vacuum by count, and without a pause.
ALTER TABLE relay.unsummarised SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 100000
);

-- Leadership ----------------------------------------------------------------------------------

CREATE TABLE relay.leases (
    name       text PRIMARY KEY,
    node       uuid NOT NULL,
    term       bigint NOT NULL,
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE relay.leases IS
    'Who leads: one row a role.  term only rises, on every change of holder and on release; '
    'work done under it is fenced by (name, node, term).';

-- Triggers ------------------------------------------------------------------------------------

-- Row level, because a transition table would copy raw_email (26 MB each) into memory.
CREATE FUNCTION relay.messages_queue() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.unsummarised (message_id) VALUES (NEW.id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
CREATE TRIGGER messages_queue AFTER INSERT ON relay.messages
    FOR EACH ROW EXECUTE FUNCTION relay.messages_queue();

CREATE FUNCTION relay.messages_announce() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('relay_messages', '');
    RETURN NULL;
END
$$;
-- The relay's writer says `relay.quiet` for its own statement: it wakes its summariser through
-- memory, and hundreds of wake-ups a second would cost as much as the parsing.
CREATE TRIGGER messages_announce AFTER INSERT ON relay.messages
    FOR EACH STATEMENT
    WHEN (current_setting('relay.quiet', true) IS DISTINCT FROM 'on')
    EXECUTE FUNCTION relay.messages_announce();

-- closed_at follows is_active, unless the statement sets it itself (the ticker does: a million
-- flips then call no function).
CREATE FUNCTION relay.mailboxes_close() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.closed_at := CASE WHEN NEW.is_active THEN NULL ELSE now() END;
    RETURN NEW;
END
$$;
CREATE TRIGGER mailboxes_close_insert BEFORE INSERT ON relay.mailboxes
    FOR EACH ROW
    WHEN (NEW.is_active IS DISTINCT FROM (NEW.closed_at IS NULL))
    EXECUTE FUNCTION relay.mailboxes_close();
CREATE TRIGGER mailboxes_close_update BEFORE UPDATE OF is_active, closed_at ON relay.mailboxes
    FOR EACH ROW
    WHEN (NEW.is_active IS DISTINCT FROM (NEW.closed_at IS NULL))
    EXECUTE FUNCTION relay.mailboxes_close();

-- Up to 200 ids (7,400 bytes; a payload holds 8,000), else '*': everybody looks.
CREATE FUNCTION relay.payload_of(ids uuid[]) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT CASE WHEN cardinality(ids) <= 200 THEN array_to_string(ids, ',') ELSE '*' END
$$;

CREATE FUNCTION relay.mailboxes_announce_insert() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    earliest timestamptz;
BEGIN
    SELECT min(expires_at) INTO earliest FROM new_rows WHERE is_active;
    IF earliest IS NOT NULL THEN
        PERFORM pg_notify('relay_expiry', extract(epoch FROM earliest)::text);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER mailboxes_announce_insert AFTER INSERT ON relay.mailboxes
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.mailboxes_announce_insert();

CREATE FUNCTION relay.mailboxes_announce_update() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    earliest timestamptz;
    changed  uuid[];
BEGIN
    SELECT min(expires_at) INTO earliest FROM new_rows WHERE is_active;
    IF earliest IS NOT NULL THEN
        PERFORM pg_notify('relay_expiry', extract(epoch FROM earliest)::text);
    END IF;
    -- The ticker's flips in due time concern nobody (waiters know the deadline) and come in
    -- thousands: leave before the join.  Everything else is looked at row by row.
    IF earliest IS NULL
       AND NOT EXISTS (SELECT FROM old_rows WHERE is_active AND expires_at > now()) THEN
        RETURN NULL;
    END IF;
    SELECT array_agg(id) INTO changed
    FROM (
        SELECT n.id
        FROM new_rows n
        JOIN old_rows o ON o.id = n.id
        WHERE (o.is_active, o.expires_at) IS DISTINCT FROM (n.is_active, n.expires_at)
        LIMIT 201
    ) c;
    IF changed IS NOT NULL THEN
        PERFORM pg_notify('relay_mailboxes', relay.payload_of(changed));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER mailboxes_announce_update AFTER UPDATE ON relay.mailboxes
    REFERENCING OLD TABLE AS old_rows NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.mailboxes_announce_update();

CREATE FUNCTION relay.mailboxes_announce_delete() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    changed uuid[];
BEGIN
    -- Nobody waits on a closed mailbox, which is what the reaper deletes.
    SELECT array_agg(id) INTO changed
    FROM (SELECT id FROM old_rows WHERE is_active AND expires_at > now() LIMIT 201) c;
    IF changed IS NOT NULL THEN
        PERFORM pg_notify('relay_mailboxes', relay.payload_of(changed));
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER mailboxes_announce_delete AFTER DELETE ON relay.mailboxes
    REFERENCING OLD TABLE AS old_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.mailboxes_announce_delete();

-- For users who write SQL ---------------------------------------------------------------------

-- 64 random bits as four pronounceable groups (proquints, arXiv:0901.4016): lusab-babad-gutih-tugad.
-- relay.mailboxes.store.random_local_part is the same in Python.
CREATE FUNCTION relay.random_local_part() RETURNS text
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$
    WITH random AS MATERIALIZED (
        SELECT sha256(uuid_send(gen_random_uuid())) AS bytes
    ), words AS (
        SELECT i, get_byte(bytes, 2 * i) * 256 + get_byte(bytes, 2 * i + 1) AS w
        FROM random, generate_series(0, 3) AS i
    )
    SELECT string_agg(
        substr('bdfghjklmnprstvz', (w >> 12) % 16 + 1, 1)
        || substr('aiou', (w >> 10) % 4 + 1, 1)
        || substr('bdfghjklmnprstvz', (w >> 6) % 16 + 1, 1)
        || substr('aiou', (w >> 4) % 4 + 1, 1)
        || substr('bdfghjklmnprstvz', w % 16 + 1, 1),
        '-' ORDER BY i)
    FROM words
$$;

CREATE FUNCTION relay.create_mailbox(ttl_minutes integer DEFAULT NULL, plan text DEFAULT 'free')
RETURNS TABLE (address text, session_token text, expires_at timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    minutes integer;
    token   text;
BEGIN
    IF create_mailbox.ttl_minutes < 1 THEN
        RAISE EXCEPTION 'ttl_minutes must be at least 1, not %', create_mailbox.ttl_minutes
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT least(coalesce(create_mailbox.ttl_minutes, p.default_ttl_minutes), p.max_ttl_minutes)
    INTO minutes
    FROM relay.plans p
    WHERE p.name = create_mailbox.plan;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no plan named %', coalesce(quote_literal(create_mailbox.plan), 'NULL')
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- 366 random bits hashed to 256: no pgcrypto needed.  Spelled like the relay's own tokens.
    token := 'rs_' || translate(
        encode(
            sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())
                   || uuid_send(gen_random_uuid())),
            'base64'),
        '+/=', '-_');
    RETURN QUERY
    INSERT INTO relay.mailboxes AS m (address, plan, token_hash, expires_at)
    SELECT relay.random_local_part() || '@' || d.name,
           create_mailbox.plan,
           sha256(convert_to(token, 'UTF8')),
           now() + make_interval(mins => minutes)
    FROM relay.domains d
    ORDER BY d.position, d.name
    LIMIT 1
    RETURNING m.address, token, m.expires_at;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'relay.domains is empty: start the relay once, or insert a domain'
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
END
$$;
COMMENT ON FUNCTION relay.create_mailbox(integer, text) IS
    'Makes an anonymous mailbox; the session token is in this answer only, its hash is stored.';
