-- Outbound mail has a deadline, and a letter has its token's.
--
-- Promises
--   * Past not_after a message that waits becomes cancelled, with the error `expired`, and a webhook
--     that asked for message.expired is told; it is never begun after that.  What is held is left to
--     whoever held it, and judged when it is queued again.
--   * A letter is delivered only while its token, as it is then, may still be used: it is asked about
--     at every claim, and one that waits is cancelled in the transaction that consumes or deletes
--     the token (or the token's account).  While the account's status does not fit, it waits.
--
-- outbound_due.not_after is what is acted on, and follows the token of a letter;
-- outbound_letters.not_after is what was said when it was queued.

ALTER TABLE relay.outbound_letters ADD COLUMN not_after timestamptz, ADD COLUMN token bigint;
COMMENT ON COLUMN relay.outbound_letters.not_after IS 'Not to be delivered after this instant.';
COMMENT ON COLUMN relay.outbound_letters.token IS
    'The relay.tokens.id whose letter this is; NULL for all other mail.';
-- A token's letter, an account's letters; other mail is not in it.
CREATE INDEX outbound_letters_token ON relay.outbound_letters (token) WHERE token IS NOT NULL;

ALTER TABLE relay.outbound_due ADD COLUMN not_after timestamptz;
COMMENT ON COLUMN relay.outbound_due.not_after IS 'Past this it is cancelled instead of delivered.';
-- What the reaper looks at; mail without a deadline is not in it.
CREATE INDEX outbound_due_deadline ON relay.outbound_due (not_after) WHERE not_after IS NOT NULL;

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
           l.not_after
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
           l.not_after
    FROM relay.outbound_log g
    JOIN relay.outbound_letters l ON l.id = g.id
    JOIN relay.outbound_contents c ON c.id = l.content_id;

-- Claim and finalise: as in 0002, and the deadline ------------------------------------------------

DROP FUNCTION relay.outbound_claim(uuid, double precision, bigint[], smallint[], timestamptz[],
                                   integer[], integer, integer, integer);

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
    expired boolean, parked boolean, letter_of bigint,
    owner uuid, recipient text, recipient_name text, domain text, hold_unknown boolean,
    created_at timestamptz, not_after timestamptz,
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
                  d.id, d.token, d.lane, d.priority, d.attempt, (d.attempt - d.base)::smallint AS turn,
                  d.not_after
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, duration, outcome, error)
        SELECT c.id, c.began_at, c.last_attempt, extract(epoch FROM now() - c.began_at), 'lost',
               'the lease ran out; whether the message was delivered is unknown'
        FROM claimed c
        WHERE c.lost
    ), addressed AS MATERIALIZED (
        SELECT c.*, l.owner, l.recipient, l.recipient_name, l.domain, l.hold_unknown, l.created_at,
               l.content_id, l.token AS letter_of,
               -- A letter is good for as long as its token, as that is now; a deleted one is over.
               CASE WHEN l.token IS NULL THEN COALESCE(c.not_after <= clock_timestamp(), false)
                    ELSE COALESCE(k.over, true) END AS expired,
               COALESCE(NOT k.over AND NOT k.fits, false) AS parked,
               EXISTS (SELECT FROM relay.suppressions s
                       WHERE s.address = l.address
                         AND (s.owner = '00000000-0000-0000-0000-000000000000'
                              OR s.owner = l.owner)) AS suppressed,
               -- What many recipients share is read and sent once: they lie side by side.
               l.content_id IS DISTINCT FROM
                   lag(l.content_id) OVER (ORDER BY c.place, c.due_at) AS first
        FROM claimed c
        CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = c.id OFFSET 0) l
        LEFT JOIN LATERAL (
            SELECT t.consumed_at IS NOT NULL
                   OR t.expires_at <= extract(epoch FROM clock_timestamp()) AS over,
                   a.status = CASE t.action WHEN 'activation' THEN 'provisioned'
                                            ELSE 'active' END::relay.account_status AS fits
            FROM relay.tokens t
            JOIN relay.accounts a ON a.id = t.account
            WHERE l.token IS NOT NULL  -- constant here: other mail does not pay for this
              AND t.id = l.token
            OFFSET 0
        ) k ON true
    )
    SELECT a.id, a.token, a.lane, a.priority, a.due_at, a.attempt, a.turn, a.lost, a.quarantined,
           a.suppressed, a.expired, a.parked, a.letter_of, a.owner, a.recipient, a.recipient_name, a.domain, a.hold_unknown,
           a.created_at, a.not_after, a.content_id,
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

CREATE OR REPLACE FUNCTION relay.outbound_finalise(
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
                          -- Nobody waits for a time that is too late: it ends when it may no longer.
                          ELSE LEAST(clock_timestamp() + make_interval(secs => g.delay),
                                     d.not_after) END
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

CREATE FUNCTION relay.outbound_expire(p_limit integer) RETURNS SETOF uuid
LANGUAGE sql
SET enable_seqscan = off
AS $$
    WITH gone AS (
        DELETE FROM relay.outbound_due d
        WHERE d.id = ANY (ARRAY(
            SELECT p.id
            FROM relay.outbound_due p
            WHERE p.not_after <= clock_timestamp()
              AND p.node IS NULL
              AND isfinite(p.run_at)
            ORDER BY p.not_after
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING d.id, d.claimed_at, d.token, d.attempt
    )
    INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, error)
    SELECT g.id, g.claimed_at, g.token + 1, g.attempt, 'cancelled', 'expired'
    FROM gone g
    RETURNING id
$$;
COMMENT ON FUNCTION relay.outbound_expire(integer) IS
    'Cancels up to p_limit waiting messages that are past their deadline: for those that no claim '
    'meets (a pause, a destination that is left alone).  Called by relay/outbound/queue.py.';

-- Tokens: their letters end with them -------------------------------------------------------------

CREATE FUNCTION relay.expire_letter(p_token bigint) RETURNS void
LANGUAGE sql
SET enable_seqscan = off
AS $$
    WITH gone AS (
        DELETE FROM relay.outbound_due d
        WHERE d.id = ANY (ARRAY(
            SELECT p.id
            FROM relay.outbound_due p
            WHERE p.id = ANY (ARRAY(SELECT l.id FROM relay.outbound_letters l
                                    WHERE l.token = p_token))
              AND p.node IS NULL
              AND isfinite(p.run_at)
            FOR UPDATE SKIP LOCKED  -- nobody who uses a token waits for a claim
        ))
        RETURNING d.id, d.claimed_at, d.token, d.attempt
    )
    INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, error)
    SELECT g.id, g.claimed_at, g.token + 1, g.attempt, 'cancelled', 'expired'
    FROM gone g
$$;
COMMENT ON FUNCTION relay.expire_letter(bigint) IS
    'Cancels the letter of a token where it waits; one that is being delivered is asked about '
    'again when it is claimed the next time.';
REVOKE EXECUTE ON FUNCTION relay.expire_letter(bigint), relay.outbound_expire(integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION relay.trg_after_token_consumed() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM relay.token_queue q
    WHERE (q.account, q.token) IN (
        SELECT p.account, p.token
        FROM relay.token_queue p
        WHERE p.account = NEW.account
          AND p.token = NEW.id
        FOR UPDATE SKIP LOCKED
    );
    IF NEW.action = 'activation' THEN
        UPDATE relay.accounts
        SET status = 'active'
        WHERE id = NEW.account
          AND status = 'provisioned';
    END IF;
    PERFORM relay.expire_letter(NEW.id);
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION relay.trg_after_token_expiry_change() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE relay.token_queue q
    SET expires_at = NEW.expires_at
    WHERE (q.account, q.token) IN (
        SELECT p.account, p.token
        FROM relay.token_queue p
        WHERE p.account = NEW.account
          AND p.token = NEW.id
        FOR NO KEY UPDATE SKIP LOCKED
    );
    IF FOUND THEN
        PERFORM pg_notify('token_insert', '');
    END IF;
    -- And the letter's, where it waits already; one that is being delivered is asked about anew
    -- when it is claimed the next time.
    UPDATE relay.outbound_due d
    SET not_after = to_timestamp(NEW.expires_at),
        run_at = LEAST(d.run_at, to_timestamp(NEW.expires_at))
    WHERE d.id = ANY (ARRAY(
        SELECT p.id
        FROM relay.outbound_due p
        WHERE p.id = ANY (ARRAY(SELECT l.id FROM relay.outbound_letters l WHERE l.token = NEW.id))
          AND p.node IS NULL
          AND isfinite(p.run_at)
        FOR NO KEY UPDATE SKIP LOCKED
    ));
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION relay.trg_after_token_deleted() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    DELETE FROM relay.token_queue q
    WHERE (q.account, q.token) IN (
        SELECT p.account, p.token
        FROM relay.token_queue p
        WHERE p.account = OLD.account
          AND p.token = OLD.id
        FOR UPDATE SKIP LOCKED
    );
    PERFORM relay.expire_letter(OLD.id);
    RETURN NULL;
END
$$;

-- Webhooks: message.expired -----------------------------------------------------------------------

ALTER TABLE relay.webhooks DROP CONSTRAINT webhooks_events_check;
ALTER TABLE relay.webhooks ADD CONSTRAINT webhooks_events_check
    CHECK (events <@ ARRAY['message.delivered', 'message.failed', 'message.bounced',
                           'message.expired']);

CREATE OR REPLACE FUNCTION relay.webhooks_outbound() RETURNS trigger
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
                               WHEN 'bounced' THEN 'message.bounced'
                               WHEN 'cancelled' THEN
                                   CASE n.error WHEN 'expired' THEN 'message.expired' END
                 END AS kind
          FROM new_rows n) e
    JOIN relay.outbound_letters l ON l.id = e.id
    JOIN relay.webhooks w ON w.owner = l.owner AND e.kind = ANY (w.events);
    IF FOUND THEN
        PERFORM pg_notify('relay_webhooks', '');
    END IF;
    RETURN NULL;
END
$$;

-- relay.send, with a last parameter more ----------------------------------------------------------

-- Beside the old one, a call with fewer arguments could mean either; so it goes, and whoever was
-- allowed to call it is allowed to call the new one.
CREATE TEMPORARY TABLE relay_send_grants ON COMMIT DROP AS
    SELECT acl.grantee, acl.is_grantable
    FROM pg_proc p
    CROSS JOIN LATERAL aclexplode(p.proacl) AS acl
    WHERE p.oid = 'relay.send(text, text, text, text, text, text, timestamptz, text)'::regprocedure;
DROP FUNCTION relay.send(text, text, text, text, text, text, timestamptz, text);

CREATE FUNCTION relay.send(
    sender          text,
    recipient       text,
    subject         text,
    text_body       text,
    html_body       text DEFAULT NULL,
    priority        text DEFAULT 'normal',
    send_at         timestamptz DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    not_after       timestamptz DEFAULT NULL
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
    IF NOT isfinite(not_after) THEN
        RAISE EXCEPTION 'not_after must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF not_after <= send_at THEN
        RAISE EXCEPTION 'not_after must be later than send_at'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF idempotency_key IS NOT NULL THEN
        IF idempotency_key = '' OR octet_length(idempotency_key) > 255 THEN
            RAISE EXCEPTION 'idempotency_key must have 1 to 255 bytes'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        -- Without not_after it is what it was before there was one: keys outlive an upgrade.
        digest := sha256(convert_to(
            (jsonb_build_array(sender, recipient, subject, text_body, html_body, priority, send_at)
             || CASE WHEN not_after IS NULL THEN '[]' ELSE jsonb_build_array(not_after) END)::text,
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
                                        domain, priority, created_at, not_after)
    VALUES (message, message, nil, to_box.address, to_box.name, lower(to_box.address), host, rank, at,
            not_after);
    INSERT INTO relay.outbound_due (id, lane, run_at, priority, not_after)
    VALUES (message, relay.outbound_lane(nil, host), COALESCE(send_at, at), rank, not_after);
    -- Equal payloads of a transaction are one notification.
    PERFORM pg_notify('relay_outbound', '');
    RETURN message;
END
$$;
COMMENT ON FUNCTION relay.send(text, text, text, text, text, text, timestamptz, text,
                            timestamptz) IS
    'Queues one message in the caller''s transaction and returns its id; rolled back, no mail.  '
    'Malformed values raise.  A recipient on the suppression list does not, as that would undo the '
    'caller''s own work: the message becomes cancelled, with the error suppressed, when its turn '
    'comes.  Past not_after it becomes cancelled, with the error expired.';

DO $$
DECLARE
    entry record;
BEGIN
    IF NOT EXISTS (SELECT FROM relay_send_grants) THEN
        RETURN;  -- nobody has changed who may: everybody, as with any new function
    END IF;
    REVOKE EXECUTE ON FUNCTION relay.send FROM PUBLIC;
    FOR entry IN SELECT * FROM relay_send_grants LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION relay.send TO %s%s',
                       CASE entry.grantee WHEN 0 THEN 'PUBLIC'
                                          ELSE quote_ident(pg_get_userbyid(entry.grantee)) END,
                       CASE WHEN entry.is_grantable AND entry.grantee <> 0
                            THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
END
$$;
