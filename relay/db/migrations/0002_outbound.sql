-- Outbound mail: what was said, what is due, what became of it.
--
-- Promises
--   * A recipient's message is in exactly one of two places at every instant: outbound_due while
--     there is work to do, outbound_log once it is finished.  One statement moves it.
--   * Whoever works on a row holds a token that only rises, also on release; a statement that
--     carries an older token changes nothing.
--   * relay.send belongs to the caller's transaction: rolled back, there is no mail.
--   * Passwords are stored encrypted, upstream texts redacted (both by the relay).
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.
--
-- Why so many tables.  outbound_due is rewritten twice a delivery and must stay small enough to be
-- vacuumed in a blink; letters are written once and read once; the log only grows.  The last two
-- are partitioned by time, so that forgetting is dropping a partition.  There are no foreign keys
-- among them: each would cost every delivery a look-up, and relay.outbound_roll drops letters only
-- when neither a due nor a logged row is left of them.

-- What was said: one row a call, shared by its recipients -----------------------------------------

CREATE TABLE relay.outbound_contents (
    id          uuid NOT NULL,
    owner       uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    sender      text NOT NULL,
    sender_name text,
    subject     text NOT NULL,
    text_body   text,
    html_body   text,
    headers     jsonb,
    attachments jsonb,
    blob        bytea,
    size        integer NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
COMMENT ON TABLE relay.outbound_contents IS
    'What was said.  id is the id of the first message that says it (a UUIDv7, so by time).';
COMMENT ON COLUMN relay.outbound_contents.attachments IS
    '[{filename, content_type, size}]; the bytes follow each other in blob.';
COMMENT ON COLUMN relay.outbound_contents.size IS 'Bytes of bodies, headers and blob together.';

-- To whom: one row a recipient --------------------------------------------------------------------

CREATE TABLE relay.outbound_letters (
    id             uuid NOT NULL,
    content_id     uuid NOT NULL,
    owner          uuid NOT NULL,
    recipient      text NOT NULL,
    recipient_name text,
    address        text COLLATE "C" NOT NULL,
    domain         text COLLATE "C" NOT NULL,
    priority       smallint NOT NULL CHECK (priority BETWEEN 0 AND 2),
    hold_unknown   boolean NOT NULL DEFAULT false,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (id)
) PARTITION BY RANGE (id);
COMMENT ON TABLE relay.outbound_letters IS
    'One row a recipient, never changed; its state is in outbound_due or outbound_log.';
COMMENT ON COLUMN relay.outbound_letters.owner IS
    'The api_keys.id that sent it; the nil uuid for the administrator and for relay.send.';
COMMENT ON COLUMN relay.outbound_letters.address IS 'recipient in lower case: what is compared.';
COMMENT ON COLUMN relay.outbound_letters.priority IS '0 high, 1 normal, 2 bulk.';
COMMENT ON COLUMN relay.outbound_letters.hold_unknown IS
    'Whether an unknown outcome (DATA begun, no answer known) is held rather than tried again.';
-- An owner's list, newest first; a recipient's.
CREATE INDEX outbound_letters_owner ON relay.outbound_letters (owner, id DESC);
CREATE INDEX outbound_letters_address ON relay.outbound_letters (address, id DESC);

-- What is due: hot and narrow ---------------------------------------------------------------------

CREATE TABLE relay.outbound_due (
    id         uuid PRIMARY KEY,
    lane       bigint NOT NULL,
    token      bigint NOT NULL DEFAULT 0,
    run_at     timestamptz NOT NULL,
    claimed_at timestamptz,
    held_until timestamptz,
    node       uuid,
    priority   smallint NOT NULL,
    attempt    smallint NOT NULL DEFAULT 0,
    base       smallint NOT NULL DEFAULT 0,
    losses     smallint NOT NULL DEFAULT 0
);
COMMENT ON TABLE relay.outbound_due IS
    'Every unfinished message.  queued: node IS NULL and run_at finite; processing: node IS NOT '
    'NULL (and past run_at its lease is lost, so it is simply due again); held: node IS NULL and '
    'run_at = infinity.';
COMMENT ON COLUMN relay.outbound_due.lane IS
    'relay.outbound_lane(owner, domain): what may be throttled by itself and gets a fair share.';
COMMENT ON COLUMN relay.outbound_due.token IS 'The fence: rises with every claim and release.';
COMMENT ON COLUMN relay.outbound_due.run_at IS
    'When it is due; while leased, when the lease ends.';
COMMENT ON COLUMN relay.outbound_due.held_until IS
    'Set from the start of DATA where an unknown outcome is to be held: run_at is infinity, and '
    'this is the end of the lease.';
COMMENT ON COLUMN relay.outbound_due.attempt IS 'Deliveries begun, all in all.';
COMMENT ON COLUMN relay.outbound_due.base IS
    'attempt when it was last queued again by hand; back-off counts from here.';
COMMENT ON COLUMN relay.outbound_due.losses IS 'Leases lost in a row.';
-- The one index of the claim.  Within a lane and a priority, the next is the first.
CREATE INDEX outbound_due_next ON relay.outbound_due (lane, priority, run_at);
-- Rows whose worker died after DATA had begun, where that means holding: nearly always empty.
CREATE INDEX outbound_due_unknown ON relay.outbound_due (held_until) WHERE held_until IS NOT NULL;
-- Every row dies within seconds of its birth: vacuum by count, without pauses.  Statistics are of
-- no use (the functions below forbid the plans that statistics could choose).
ALTER TABLE relay.outbound_due SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 200000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.5,
    autovacuum_analyze_threshold = 100000
);

-- What became of it -------------------------------------------------------------------------------

CREATE TABLE relay.outbound_log (
    id          uuid NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    claimed_at  timestamptz,
    token       bigint NOT NULL,
    attempt     smallint NOT NULL,
    code        smallint,
    duration    real,
    status      text NOT NULL CHECK (status IN ('sent', 'failed', 'bounced', 'cancelled')),
    phase       text,
    enhanced    text,
    error       text,
    steps       bytea
) PARTITION BY RANGE (finished_at);
COMMENT ON TABLE relay.outbound_log IS
    'Every finished message with its last attempt (phase NULL: finished without one).  error is '
    'redacted, steps are for relay.outbound_steps.';
-- Look-up by id, in each partition.  A message is in the log once: what puts it there deletes its
-- row from outbound_due in the same statement, and the reverse.
CREATE INDEX outbound_log_id ON relay.outbound_log (id);
-- Lists of what went wrong, however much went well.
CREATE INDEX outbound_log_trouble ON relay.outbound_log (id) WHERE status <> 'sent';
CREATE INDEX outbound_log_unlucky ON relay.outbound_log (finished_at) WHERE status <> 'sent';
-- Counting by time costs next to nothing to keep.
CREATE INDEX outbound_log_time ON relay.outbound_log USING brin (finished_at);

CREATE FUNCTION relay.outbound_recent(within interval, most integer)
RETURNS TABLE (status text, n bigint)
LANGUAGE sql STABLE
SET enable_seqscan = off  -- a bound makes the whole table look cheap; its first rows are the oldest
AS $$
    WITH unlucky AS (
        SELECT u.status, count(*) AS n
        FROM (SELECT l.status
              FROM relay.outbound_log l
              WHERE l.finished_at > now() - within
                AND l.status <> 'sent'
              LIMIT most) u
        GROUP BY u.status
    )
    SELECT * FROM unlucky
    UNION ALL
    -- Nothing tells the sent from the others but the rows: count all, and take away.
    SELECT 'sent', count(*) - (SELECT COALESCE(sum(n), 0)::bigint FROM unlucky)
    FROM (SELECT FROM relay.outbound_log l
          WHERE l.finished_at > now() - within
          LIMIT most) finished
    HAVING count(*) > (SELECT COALESCE(sum(n), 0) FROM unlucky)
$$;
COMMENT ON FUNCTION relay.outbound_recent(interval, integer) IS
    'What finished lately, by status, as far as so many rows tell.';

CREATE TABLE relay.outbound_tries (
    message_id uuid NOT NULL,
    at         timestamptz NOT NULL,
    attempt    smallint NOT NULL,
    code       smallint,
    duration   real,
    outcome    text NOT NULL,
    phase      text,
    enhanced   text,
    error      text,
    steps      bytea
) PARTITION BY RANGE (at);
COMMENT ON TABLE relay.outbound_tries IS
    'Attempts that did not finish their message.  outcome: queued, held, lost (the lease ran out: '
    'whether the mail went out is unknown), or what was the end until it was queued again by hand.';
CREATE INDEX outbound_tries_message ON relay.outbound_tries (message_id, attempt);

-- Partitions --------------------------------------------------------------------------------------

CREATE TABLE relay.outbound_contents_rest PARTITION OF relay.outbound_contents DEFAULT;
CREATE TABLE relay.outbound_letters_rest PARTITION OF relay.outbound_letters DEFAULT;
CREATE TABLE relay.outbound_log_rest PARTITION OF relay.outbound_log DEFAULT;
CREATE TABLE relay.outbound_tries_rest PARTITION OF relay.outbound_tries DEFAULT;
COMMENT ON TABLE relay.outbound_log_rest IS
    'What no partition covers (a clock far off, a reaper that did not run): nothing is refused.';

-- The lowest UUIDv7 of an instant.
CREATE FUNCTION relay.uuidv7_floor(at timestamptz) RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT (lpad(to_hex(floor(extract(epoch FROM at) * 1000)::bigint), 12, '0')
            || repeat('0', 20))::uuid
$$;

CREATE FUNCTION relay.outbound_partition(week timestamptz) RETURNS integer
LANGUAGE plpgsql
-- A report that reads for an hour must not make every delivery wait behind this.
SET lock_timeout = '500ms'
AS $$
DECLARE
    lower_at timestamptz := date_trunc('week', week, 'UTC');
    upper_at timestamptz := lower_at + interval '7 days';
    suffix   text := to_char(lower_at AT TIME ZONE 'UTC', '"_p"YYYYMMDD');
    parent   text;
    made     integer := 0;
BEGIN
    FOREACH parent IN ARRAY ARRAY['outbound_contents', 'outbound_letters', 'outbound_log', 'outbound_tries']
    LOOP
        CONTINUE WHEN to_regclass('relay.' || parent || suffix) IS NOT NULL;
        -- Attaching locks the table less than creating the partition in place would.
        EXECUTE format('CREATE TABLE relay.%I (LIKE relay.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)',
                       parent || suffix, parent);
        IF parent IN ('outbound_contents', 'outbound_letters') THEN
            EXECUTE format('ALTER TABLE relay.%I ATTACH PARTITION relay.%I FOR VALUES FROM (%L) TO (%L)',
                           parent, parent || suffix,
                           relay.uuidv7_floor(lower_at), relay.uuidv7_floor(upper_at));
        ELSE
            EXECUTE format('ALTER TABLE relay.%I ATTACH PARTITION relay.%I FOR VALUES FROM (%L) TO (%L)',
                           parent, parent || suffix, lower_at, upper_at);
        END IF;
        IF parent = 'outbound_contents' THEN
            -- Ordinary letters stay in the heap, which saves a second table and a second index.
            EXECUTE format('ALTER TABLE relay.%I SET (toast_tuple_target = 8160)', parent || suffix);
        END IF;
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
COMMENT ON FUNCTION relay.outbound_partition(timestamptz) IS
    'Makes the partitions of the week that holds an instant; returns how many were missing.';

CREATE FUNCTION relay.outbound_roll(keep interval DEFAULT '30 days') RETURNS integer
LANGUAGE plpgsql
SET lock_timeout = '500ms'
AS $$
DECLARE
    part     record;
    week     integer;
    upper_at timestamptz;
    dropped  integer := 0;
    used     boolean;
BEGIN
    FOR week IN 0..2 LOOP
        BEGIN
            PERFORM relay.outbound_partition(now() + make_interval(weeks => week));
        EXCEPTION WHEN lock_not_available THEN
            EXIT;  -- there is time until it is needed, and then the default partition
        END;
    END LOOP;
    -- The log and the attempts first: letters go once nothing is left that speaks of them.
    DELETE FROM relay.outbound_log_rest WHERE finished_at < now() - keep;
    DELETE FROM relay.outbound_tries_rest WHERE at < now() - keep;
    FOR part IN
        SELECT p.relname AS parent, c.relname AS name,
               to_date(right(c.relname, 8), 'YYYYMMDD')::timestamp AT TIME ZONE 'UTC' AS lower_at
        FROM pg_inherits i
        JOIN pg_class c ON c.oid = i.inhrelid
        JOIN pg_class p ON p.oid = i.inhparent
        JOIN pg_namespace n ON n.oid = p.relnamespace
        WHERE n.nspname = 'relay'
          AND p.relname IN ('outbound_contents', 'outbound_letters', 'outbound_log', 'outbound_tries')
          AND c.relname ~ '_p[0-9]{8}$'
        ORDER BY p.relname NOT IN ('outbound_log', 'outbound_tries'), c.relname
    LOOP
        upper_at := part.lower_at + interval '7 days';
        CONTINUE WHEN upper_at > now() - keep;
        IF part.parent IN ('outbound_contents', 'outbound_letters') THEN
            SELECT EXISTS (SELECT FROM relay.outbound_due d
                           WHERE d.id >= relay.uuidv7_floor(part.lower_at)
                             AND d.id < relay.uuidv7_floor(upper_at))
                OR EXISTS (SELECT FROM relay.outbound_log l
                           WHERE l.id >= relay.uuidv7_floor(part.lower_at)
                             AND l.id < relay.uuidv7_floor(upper_at))
            INTO used;
            CONTINUE WHEN used;
        END IF;
        BEGIN
            EXECUTE format('DROP TABLE relay.%I', part.name);
            dropped := dropped + 1;
        EXCEPTION WHEN lock_not_available THEN
            EXIT;  -- somebody reads on; while this waits, every delivery waits behind it
        END;
    END LOOP;
    DELETE FROM relay.outbound_letters_rest l
    WHERE l.id < relay.uuidv7_floor(now() - keep)
      AND NOT EXISTS (SELECT FROM relay.outbound_due d WHERE d.id = l.id)
      AND NOT EXISTS (SELECT FROM relay.outbound_log g WHERE g.id = l.id);
    DELETE FROM relay.outbound_contents_rest c
    WHERE c.id < relay.uuidv7_floor(now() - keep)
      AND NOT EXISTS (SELECT FROM relay.outbound_letters_rest l WHERE l.content_id = c.id);
    RETURN dropped;
END
$$;
COMMENT ON FUNCTION relay.outbound_roll(interval) IS
    'Makes the partitions of this week and the next two, and drops those that ended longer ago '
    'than keep; returns how many were dropped.  The reaper calls it.';

-- Keys, senders, suppressions, rates, the switch --------------------------------------------------

CREATE TABLE relay.outbound_keys (
    owner      uuid NOT NULL,
    key        text NOT NULL,
    body_hash  bytea NOT NULL,
    ids        uuid[] NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (owner, key)
);
COMMENT ON TABLE relay.outbound_keys IS
    'Idempotency keys: for 24 hours the same key with the same body is answered with the same ids.';
CREATE INDEX outbound_keys_age ON relay.outbound_keys (created_at);

CREATE TABLE relay.senders (
    id         uuid PRIMARY KEY DEFAULT relay.uuidv7(),
    owner      uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    address    text COLLATE "C" NOT NULL CHECK (address = lower(address) AND octet_length(address) <= 254),
    upstream   text NOT NULL,
    username   text,
    password   bytea,
    key_id     bytea,
    private    boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (owner, address)
);
COMMENT ON TABLE relay.senders IS
    'Upstream identities: mail of this owner from this address goes through this upstream.';
COMMENT ON COLUMN relay.senders.upstream IS 'scheme://host:port, without user and password.';
COMMENT ON COLUMN relay.senders.password IS
    'Encrypted (Fernet); id is inside the plaintext, so that passwords cannot be swapped by SQL.';
COMMENT ON COLUMN relay.senders.key_id IS
    'Which encryption key made password: what rotation has still to do.';
COMMENT ON COLUMN relay.senders.private IS
    'Whether upstream may lie inside the relay''s own network: not if a key without the scope '
    'admin named it.';

CREATE TABLE relay.suppressions (
    address    text COLLATE "C" NOT NULL,
    owner      uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    reason     text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (address, owner)
);
COMMENT ON TABLE relay.suppressions IS
    'Addresses that get no mail.  Of the nil owner: from nobody; else from that owner.';
CREATE FUNCTION relay.suppressions_fold() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    NEW.address := lower(NEW.address);
    RETURN NEW;
END
$$;
CREATE TRIGGER suppressions_fold BEFORE INSERT OR UPDATE ON relay.suppressions
    FOR EACH ROW EXECUTE FUNCTION relay.suppressions_fold();

CREATE TABLE relay.outbound_rates (
    key        text COLLATE "C" PRIMARY KEY,
    rate       double precision CHECK (rate > 0),
    burst      double precision CHECK (burst >= 1),
    tat        timestamptz NOT NULL DEFAULT '-infinity',
    created_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE relay.outbound_rates IS
    'Limits that all nodes share, of certain routes and domains; the settings outbound.route_rate '
    'and outbound.domain_rate are for all others.  Insert, update and delete at will: nodes follow '
    'within seconds.  Arithmetic: relay/outbound/rates.py.';
COMMENT ON COLUMN relay.outbound_rates.key IS
    'route:<scheme://host:port> or domain:<destination domain, in lower case>.';
COMMENT ON COLUMN relay.outbound_rates.rate IS
    'Messages a second; NULL: what the settings say (the relay makes such rows itself).';
COMMENT ON COLUMN relay.outbound_rates.burst IS
    'Messages that may go at once after a silence; NULL: one second''s worth.';
COMMENT ON COLUMN relay.outbound_rates.tat IS
    'GCRA''s theoretical arrival time: when all that was granted will have been earned.';

CREATE TABLE relay.outbound_control (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    paused    boolean NOT NULL DEFAULT false,
    paused_at timestamptz
);
COMMENT ON TABLE relay.outbound_control IS 'One row: whether all nodes hold their claims.';
INSERT INTO relay.outbound_control DEFAULT VALUES;

-- The whole, readable -----------------------------------------------------------------------------

CREATE VIEW relay.outbound_messages AS
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
           l.owner
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
           l.owner
    FROM relay.outbound_log g
    JOIN relay.outbound_letters l ON l.id = g.id
    JOIN relay.outbound_contents c ON c.id = l.content_id;
COMMENT ON VIEW relay.outbound_messages IS
    'Every outbound message, one row a recipient.  status: queued, processing, held (unfinished); '
    'sent, failed, bounced, cancelled (finished).  Send with relay.send().';

-- The eleven bytes a step that relay/outbound/steps.py packs, as JSON.
CREATE FUNCTION relay.outbound_steps(steps bytea, began_at timestamptz) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
AS $$
    SELECT jsonb_agg(jsonb_build_object(
               'phase', (ARRAY['connect', 'tls', 'ehlo', 'auth', 'mail', 'rcpt', 'data', 'dot'])
                        [get_byte(steps, n) + 1],
               'code', NULLIF(get_byte(steps, n + 1) * 256 + get_byte(steps, n + 2), 0),
               'at', to_char((began_at + make_interval(secs => after / 1e6)) AT TIME ZONE 'UTC',
                             'YYYY-MM-DD"T"HH24:MI:SS.US"+00:00"'),
               'duration', round(took / 1e6, 6)
           ) ORDER BY n)
    FROM generate_series(0, octet_length(steps) - 11, 11) AS n
    CROSS JOIN LATERAL (
        SELECT sum(get_byte(steps, n + 3 + b)::bigint << 8 * (3 - b)) AS after,
               sum(get_byte(steps, n + 7 + b)::bigint << 8 * (3 - b)) AS took
        FROM generate_series(0, 3) AS b
    ) micros
$$;

CREATE VIEW relay.outbound_attempts AS
    SELECT message_id, attempt::integer, at, duration, outcome, phase, code::integer, enhanced,
           error, relay.outbound_steps(steps, at) AS events
    FROM relay.outbound_tries
    UNION ALL
    SELECT id, attempt::integer, claimed_at, duration, status, phase, code::integer, enhanced,
           error, relay.outbound_steps(steps, claimed_at)
    FROM relay.outbound_log
    WHERE phase IS NOT NULL;
COMMENT ON VIEW relay.outbound_attempts IS
    'Every attempt: when it began, seconds it took, the phase and code that decided it.';

-- The two statements that run all day -------------------------------------------------------------
--
-- Functions, because of the planner: a plan that is made while the queue is empty reads the whole
-- table and is kept, and then the burst comes.  SET forbids sequential scans for these statements
-- alone, which a pooled connection (PgBouncer's least of all) cannot be trusted with.  That leaves
-- the walk through a whole index, from the large side of a join to the small one: what is only read
-- is joined by LATERAL … OFFSET 0, and what is changed by `= ANY (ARRAY[…])`, which can look up but
-- not be merged, so for either there is one plan: a probe a row.

CREATE FUNCTION relay.outbound_lane(owner uuid, domain text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    -- A hash rather than a number from a table: two transactions that mail a new domain would
    -- wait for each other there.  relay.outbound.lanes.lane_of is the same in Python.
    SELECT ('x' || substr(encode(sha256(uuid_send(owner) || convert_to(domain, 'UTF8')), 'hex'), 1, 16))
           ::bit(64)::bigint
$$;

CREATE FUNCTION relay.outbound_claim(
    p_node         uuid,
    p_lease        double precision,
    p_lanes        bigint[],
    p_priorities   smallint[],
    p_floors       timestamptz[],
    p_limits       integer[],
    p_max_attempts integer,
    p_max_losses   integer,
    p_inline       integer
) RETURNS TABLE (
    id uuid, token bigint, lane bigint, priority smallint, due_at timestamptz,
    attempt smallint, turn smallint, lost boolean, quarantined boolean, suppressed boolean,
    owner uuid, recipient text, recipient_name text, domain text, hold_unknown boolean,
    created_at timestamptz,
    content_id uuid, sender text, sender_name text, subject text, size integer, has_body boolean,
    text_body text, html_body text, headers jsonb, attachments jsonb, blob bytea,
    sender_id uuid, upstream text, username text, password bytea, private boolean
)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    -- The end of the lease; the caller counts from before it called, so it gives up earlier.
    lease_end timestamptz := clock_timestamp() + make_interval(secs => p_lease);
BEGIN
    IF (SELECT paused FROM relay.outbound_control) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH wanted AS MATERIALIZED (
        SELECT *
        FROM unnest(p_lanes, p_priorities, p_floors, p_limits)
             WITH ORDINALITY AS w (lane, priority, floor, quota, place)
    ), picked AS MATERIALIZED (
        -- MATERIALIZED, or LIMIT would be forgotten where the planner runs the sub-select again.
        -- floor: below it lie only dead index entries, which an old snapshot (a backup, a report)
        -- keeps for as long as it lives.
        SELECT w.place, n.*
        FROM wanted w
        CROSS JOIN LATERAL (
            SELECT d.id, d.run_at, d.node IS NOT NULL AS lost, d.claimed_at, d.attempt,
                   -- A message that took its worker down several times, or whose last attempt
                   -- ended in the dark, is set aside instead of tried once more.
                   d.node IS NOT NULL AND (d.losses + 1 >= p_max_losses
                                           OR d.attempt - d.base >= p_max_attempts) AS quarantined
            FROM relay.outbound_due d
            WHERE d.lane = w.lane
              AND d.priority = w.priority
              AND d.run_at >= w.floor
              AND d.run_at <= now()
            ORDER BY d.run_at
            LIMIT w.quota
            FOR NO KEY UPDATE SKIP LOCKED
        ) n
    ), claimed AS MATERIALIZED (
        UPDATE relay.outbound_due d
        SET token = d.token + 1,
            attempt = d.attempt + (NOT p.quarantined)::integer,
            losses = d.losses + p.lost::integer,
            run_at = CASE WHEN p.quarantined THEN 'infinity' ELSE lease_end END,
            node = CASE WHEN p.quarantined THEN NULL ELSE p_node END,
            claimed_at = now()
        FROM picked p
        WHERE d.id = ANY (ARRAY[p.id])
        RETURNING p.place, p.run_at AS due_at, p.lost, p.quarantined,
                  p.claimed_at AS began_at, p.attempt AS last_attempt,
                  d.id, d.token, d.lane, d.priority, d.attempt, (d.attempt - d.base)::smallint AS turn
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, duration, outcome, error)
        SELECT c.id, c.began_at, c.last_attempt, extract(epoch FROM now() - c.began_at), 'lost',
               'the lease ran out; whether the message was delivered is unknown'
        FROM claimed c
        WHERE c.lost
    ), addressed AS MATERIALIZED (
        SELECT c.*, l.owner, l.recipient, l.recipient_name, l.domain, l.hold_unknown, l.created_at,
               l.content_id,
               EXISTS (SELECT FROM relay.suppressions s
                       WHERE s.address = l.address
                         AND (s.owner = '00000000-0000-0000-0000-000000000000'
                              OR s.owner = l.owner)) AS suppressed,
               -- What many recipients share is read and sent once: they lie side by side.
               l.content_id IS DISTINCT FROM
                   lag(l.content_id) OVER (ORDER BY c.place, c.due_at) AS first
        FROM claimed c
        CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = c.id OFFSET 0) l
    )
    SELECT a.id, a.token, a.lane, a.priority, a.due_at, a.attempt, a.turn, a.lost, a.quarantined,
           a.suppressed, a.owner, a.recipient, a.recipient_name, a.domain, a.hold_unknown,
           a.created_at, a.content_id,
           t.sender, t.sender_name, t.subject, t.size, a.first AND t.size <= p_inline,
           CASE WHEN a.first AND t.size <= p_inline THEN t.text_body END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.html_body END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.headers END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.attachments END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.blob END,
           s.id, s.upstream, s.username, s.password, s.private
    FROM addressed a
    CROSS JOIN LATERAL (
        SELECT * FROM relay.outbound_contents WHERE id = a.content_id OFFSET 0
    ) t
    LEFT JOIN LATERAL (
        SELECT * FROM relay.senders WHERE owner = a.owner AND address = lower(t.sender) OFFSET 0
    ) s ON true;
    -- No ORDER BY: the window has ordered the narrow rows, and nested loops keep the order.
END
$$;
COMMENT ON FUNCTION relay.outbound_claim(uuid, double precision, bigint[], smallint[], timestamptz[],
                                         integer[], integer, integer, integer) IS
    'Leases up to p_limits[i] due messages of lane and priority i, and returns all that delivering '
    'them needs.  Called by relay/outbound/queue.py.';

CREATE FUNCTION relay.outbound_lease(
    p_keys     text[],
    p_wants    integer[],
    p_defaults double precision[],
    p_worth    double precision
) RETURNS TABLE (key text, granted integer, wait double precision)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    -- A row for each key that only the settings limit, so that there is something to lock.
    INSERT INTO relay.outbound_rates (key)
    SELECT w.key
    FROM unnest(p_keys, p_defaults) AS w (key, rate)
    WHERE w.rate IS NOT NULL
    ORDER BY w.key
    ON CONFLICT ON CONSTRAINT outbound_rates_pkey DO NOTHING;
    RETURN QUERY
    WITH locked AS MATERIALIZED (
        -- In the order of the keys: two nodes meet on the first row they share.
        SELECT r.key, r.tat, w.want, COALESCE(r.rate, w.rate) AS rate,
               GREATEST(COALESCE(r.burst, r.rate, w.rate), 1) AS burst
        FROM relay.outbound_rates r
        JOIN unnest(p_keys, p_wants, p_defaults) AS w (key, want, rate) ON w.key = r.key
        ORDER BY r.key
        FOR NO KEY UPDATE OF r
    ), timed AS MATERIALIZED (
        -- The clock after the locks: whoever waited for one must not look back.
        SELECT l.*, c.at, GREATEST(l.tat, c.at) AS start
        FROM locked l
        CROSS JOIN (SELECT clock_timestamp() AS at FROM (SELECT count(*) FROM locked) n OFFSET 0) c
        WHERE l.rate IS NOT NULL
    ), counted AS MATERIALIZED (
        SELECT t.*,
               LEAST(t.want, GREATEST(floor(
                   extract(epoch FROM t.at - t.start)::float8 * t.rate + t.burst + 1e-6), 0)
               )::integer AS count
        FROM timed t
    )
    UPDATE relay.outbound_rates r
    SET tat = CASE WHEN c.count > 0 THEN c.start + make_interval(secs => c.count / c.rate)
                   ELSE r.tat END
    FROM counted c
    WHERE r.key = c.key
    RETURNING r.key, c.count,
              CASE WHEN c.count = c.want THEN 0
                   ELSE GREATEST(0, extract(epoch FROM c.start - c.at)::float8
                        + (c.count - c.burst
                           + GREATEST(LEAST(floor(c.burst), floor(c.rate * p_worth)), 1)) / c.rate)
              END;
END
$$;
COMMENT ON FUNCTION relay.outbound_lease(text[], integer[], double precision[], double precision) IS
    'Grants up to p_wants[i] messages of p_keys[i], whose rate is its row''s or p_defaults[i]; a key '
    'without either has no limit and no row in the answer.  Called by relay/outbound/rates.py.';

CREATE FUNCTION relay.outbound_finalise(
    p_ids       uuid[],
    p_tokens    bigint[],
    p_statuses  text[],
    p_delays    double precision[],
    p_begun     boolean[],
    p_ages      double precision[],
    p_durations real[],
    p_phases    text[],
    p_codes     smallint[],
    p_enhanced  text[],
    p_errors    text[],
    p_steps     bytea[]
) RETURNS TABLE (id uuid)
LANGUAGE plpgsql
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT *
        FROM unnest(p_ids, p_tokens, p_statuses, p_delays, p_begun, p_ages, p_durations, p_phases,
                    p_codes, p_enhanced, p_errors, p_steps)
             AS g (id, token, status, delay, begun, age, duration, phase, code, enhanced, error,
                   steps)
    ), gone AS (
        -- id and token alone: the token says everything a state column could.
        DELETE FROM relay.outbound_due d
        USING given g
        WHERE d.id = ANY (ARRAY[g.id])
          AND d.token = g.token
          AND g.status NOT IN ('queued', 'held')
        RETURNING d.id, d.token + 1 AS next_token, d.attempt - (NOT g.begun)::integer AS attempt,
                  d.claimed_at, g.status, g.age, g.duration, g.phase, g.code, g.enhanced, g.error,
                  g.steps
    ), kept AS (
        UPDATE relay.outbound_due d
        SET token = d.token + 1,
            node = NULL,
            held_until = NULL,
            losses = 0,
            attempt = d.attempt - (NOT g.begun)::integer,
            run_at = CASE g.status WHEN 'held' THEN 'infinity'
                          ELSE clock_timestamp() + make_interval(secs => g.delay) END
        FROM given g
        WHERE d.id = ANY (ARRAY[g.id])
          AND d.token = g.token
          AND g.status IN ('queued', 'held')
        RETURNING d.id, d.attempt, d.claimed_at, g.begun, g.status, g.age, g.duration, g.phase,
                  g.code, g.enhanced, g.error, g.steps
    ), logged AS (
        INSERT INTO relay.outbound_log (id, finished_at, claimed_at, token, attempt, code, duration,
                                        status, phase, enhanced, error, steps)
        SELECT g.id, now(), COALESCE(now() - make_interval(secs => g.age), g.claimed_at),
               g.next_token, g.attempt, g.code, g.duration,
               g.status, g.phase, g.enhanced, g.error, g.steps
        FROM gone g
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, code, duration, outcome, phase,
                                          enhanced, error, steps)
        SELECT k.id, COALESCE(now() - make_interval(secs => k.age), k.claimed_at, now()), k.attempt,
               k.code, k.duration, k.status, k.phase, k.enhanced, k.error, k.steps
        FROM kept k
        WHERE k.begun
    )
    SELECT g.id FROM gone g
    UNION ALL
    SELECT k.id FROM kept k;
END
$$;
COMMENT ON FUNCTION relay.outbound_finalise(uuid[], bigint[], text[], double precision[], boolean[],
    double precision[], real[], text[], smallint[], text[], text[], bytea[]) IS
    'Records many outcomes, each only where its token is still the row''s; returns the ids that '
    'were.  Called by relay/outbound/queue.py.';

CREATE FUNCTION relay.outbound_survey()
RETURNS TABLE (lane bigint, priority smallint, due_at timestamptz, domain text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET enable_bitmapscan = off
SET enable_sort = off
SET jit = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    -- A loose index scan: from each lane and priority straight to the next, one probe each.
    WITH RECURSIVE strips AS (
        (SELECT d.lane, d.priority, d.run_at, d.id
         FROM relay.outbound_due d
         ORDER BY d.lane, d.priority, d.run_at
         LIMIT 1)
        UNION ALL
        SELECT n.*
        FROM strips s
        CROSS JOIN LATERAL (
            SELECT d.lane, d.priority, d.run_at, d.id
            FROM relay.outbound_due d
            WHERE (d.lane, d.priority) > (s.lane, s.priority)
            ORDER BY d.lane, d.priority, d.run_at
            LIMIT 1
        ) n
    )
    SELECT s.lane, s.priority, s.run_at, l.domain
    FROM strips s
    CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = s.id OFFSET 0) l
    WHERE isfinite(s.run_at);
END
$$;
COMMENT ON FUNCTION relay.outbound_survey() IS
    'Each lane and priority with anything in it, and when its first is due.';

-- For users who write SQL -------------------------------------------------------------------------

-- `Name <local@domain>` or `local@domain` -> the two parts; raises for anything else.
CREATE FUNCTION relay.outbound_mailbox(field text, value text, OUT name text, OUT address text)
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
    parts text[];
BEGIN
    IF value IS NULL OR value ~ '[[:cntrl:]]' THEN
        RAISE EXCEPTION '% must be an address without control characters', field
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    parts := regexp_match(value, '^\s*(.*?)\s*<([^<>]+)>\s*$');
    IF parts IS NULL THEN
        address := btrim(value);
    ELSE
        name := NULLIF(btrim(parts[1], ' "'), '');
        address := parts[2];
    END IF;
    IF address !~ '^[^@[:space:]<>(),;:"\\]{1,64}@[^@[:space:]<>(),;"\\]+$'
       OR address ~ '@[.-]|[.-]$|\.\.|^\.|\.@'
       OR octet_length(address) > 254 THEN
        -- What was given, for the caller alone: the message itself goes into the server's log.
        RAISE EXCEPTION '% is not an address', field
            USING ERRCODE = 'invalid_parameter_value', DETAIL = left(value, 100);
    END IF;
    -- Suppressions, rates and lanes know a domain by its ASCII form, which SQL cannot work out.
    IF split_part(address, '@', 2) !~ '^[!-~]+$' THEN
        RAISE EXCEPTION 'the domain of % must be in ASCII (xn--...)', field
            USING ERRCODE = 'invalid_parameter_value', DETAIL = left(value, 100);
    END IF;
END
$$;

CREATE FUNCTION relay.send(
    sender          text,
    recipient       text,
    subject         text,
    text_body       text,
    html_body       text DEFAULT NULL,
    priority        text DEFAULT 'normal',
    send_at         timestamptz DEFAULT NULL,
    idempotency_key text DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    nil       CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    from_box  record;
    to_box    record;
    rank      smallint := array_position(ARRAY['high', 'normal', 'bulk'], priority) - 1;
    message   uuid := relay.uuidv7();
    host      text;
    digest    bytea;
    known     relay.outbound_keys;
    at        timestamptz := clock_timestamp();
BEGIN
    from_box := relay.outbound_mailbox('sender', sender);
    to_box := relay.outbound_mailbox('recipient', recipient);
    IF subject IS NULL OR subject ~ '[[:cntrl:]]' OR octet_length(subject) > 2000 THEN
        RAISE EXCEPTION 'subject must be one line of at most 2000 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF text_body IS NULL AND html_body IS NULL THEN
        RAISE EXCEPTION 'text_body or html_body must be given'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF rank IS NULL THEN
        RAISE EXCEPTION 'priority must be high, normal or bulk'
            USING ERRCODE = 'invalid_parameter_value', DETAIL = COALESCE(left(priority, 20), 'NULL');
    END IF;
    IF NOT isfinite(send_at) THEN
        RAISE EXCEPTION 'send_at must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF idempotency_key IS NOT NULL THEN
        IF idempotency_key = '' OR octet_length(idempotency_key) > 255 THEN
            RAISE EXCEPTION 'idempotency_key must have 1 to 255 bytes'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        digest := sha256(convert_to(
            jsonb_build_array(sender, recipient, subject, text_body, html_body, priority, send_at)::text,
            'UTF8'));
        -- Of two at once the second waits here for the first's transaction.
        INSERT INTO relay.outbound_keys AS k (owner, key, body_hash, ids)
        VALUES (nil, idempotency_key, digest, ARRAY[message])
        ON CONFLICT ON CONSTRAINT outbound_keys_pkey DO UPDATE
        SET body_hash = excluded.body_hash, ids = excluded.ids, created_at = excluded.created_at
        WHERE k.created_at < clock_timestamp() - interval '24 hours';
        IF NOT FOUND THEN
            SELECT * INTO STRICT known
            FROM relay.outbound_keys k
            WHERE k.owner = nil AND k.key = idempotency_key;
            IF known.body_hash <> digest THEN
                RAISE EXCEPTION 'idempotency_key was used for another message within 24 hours'
                    USING ERRCODE = 'unique_violation';
            END IF;
            RETURN known.ids[1];
        END IF;
    END IF;
    host := lower(split_part(to_box.address, '@', 2));
    INSERT INTO relay.outbound_contents (id, sender, sender_name, subject, text_body, html_body, size, created_at)
    VALUES (message, from_box.address, from_box.name, subject, text_body, html_body,
            COALESCE(octet_length(text_body), 0) + COALESCE(octet_length(html_body), 0), at);
    INSERT INTO relay.outbound_letters (id, content_id, owner, recipient, recipient_name, address,
                                        domain, priority, created_at)
    VALUES (message, message, nil, to_box.address, to_box.name, lower(to_box.address), host, rank, at);
    INSERT INTO relay.outbound_due (id, lane, run_at, priority)
    VALUES (message, relay.outbound_lane(nil, host), COALESCE(send_at, at), rank);
    -- Equal payloads of a transaction are one notification.
    PERFORM pg_notify('relay_outbound', '');
    RETURN message;
END
$$;
COMMENT ON FUNCTION relay.send(text, text, text, text, text, text, timestamptz, text) IS
    'Queues one message in the caller''s transaction and returns its id; rolled back, no mail.  '
    'Malformed values raise.  A recipient on the suppression list does not, as that would undo the '
    'caller''s own work: the message becomes cancelled, with the error suppressed, when its turn '
    'comes.';

SELECT relay.outbound_roll();
