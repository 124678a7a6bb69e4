-- What becomes of mail that came by submission, told to whoever submitted it (RFC 3461, RFC 3464).
--
-- Promises
--   * What was asked for (NOTIFY, ORCPT, RET, ENVID, REQUIRETLS) is stored with the message.  Other
--     mail has NULL in these columns, which takes no room, and nothing is looked up for what was sent.
--   * What is to be told is written down by the transaction that makes it so, by triggers, whoever
--     ends a message: a delivery, its deadline, a bounce that comes late.
--   * No report has a report: its reverse-path is the null one, and it asks for none.
--   * Nothing is rewritten.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.outbound_letters
    ADD COLUMN notify smallint CHECK (notify BETWEEN 0 AND 15),
    ADD COLUMN orcpt text;
COMMENT ON COLUMN relay.outbound_letters.notify IS
    'Of what its submitter is told: 1 success, 2 failure, 4 delay; 0 nothing (NOTIFY=NEVER).  8 is '
    'added where the submitter did not say.  NULL: it did not come by submission.';
COMMENT ON COLUMN relay.outbound_letters.orcpt IS
    'The original recipient as the submitter gave it (RFC 3461): type;xtext.';

ALTER TABLE relay.outbound_contents
    ADD COLUMN ret text CHECK (ret IN ('FULL', 'HDRS')),
    ADD COLUMN envid text,
    ADD COLUMN require_tls boolean,
    ADD COLUMN route_as text;
COMMENT ON COLUMN relay.outbound_contents.ret IS
    'How much of it a report of failure returns, as the submitter asked.';
COMMENT ON COLUMN relay.outbound_contents.envid IS
    'The submitter''s name for it (RFC 3461), in xtext.';
COMMENT ON COLUMN relay.outbound_contents.require_tls IS
    'Whether it leaves by verified TLS alone, to servers with REQUIRETLS (RFC 8689).';
COMMENT ON COLUMN relay.outbound_contents.route_as IS
    'Of a report to a submitter: the address whose upstream (relay.senders) it takes, its sender '
    'being nobody.  NULL: it is no report.';

ALTER TABLE relay.outbound_log ADD COLUMN notice text
    CHECK (notice IN ('relayed', 'delivered'));
COMMENT ON COLUMN relay.outbound_log.notice IS
    'What its submitter is told of it, having asked for that (NOTIFY=SUCCESS); NULL: nothing, or '
    'that is for the next server to tell.';

-- What is to be told ------------------------------------------------------------------------------

CREATE TABLE relay.outbound_notices (
    message_id uuid NOT NULL,
    action     text NOT NULL CHECK (action IN ('failed', 'delayed', 'relayed', 'delivered')),
    run_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    attempt    smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (message_id, action)
);
COMMENT ON TABLE relay.outbound_notices IS
    'Of which messages submitters are to be told; the transaction that queues the report deletes it.';
COMMENT ON COLUMN relay.outbound_notices.run_at IS 'When; later, where it could not be done.';
CREATE INDEX outbound_notices_next ON relay.outbound_notices (run_at);

CREATE TABLE relay.outbound_watch (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    looked_to uuid NOT NULL
);
COMMENT ON TABLE relay.outbound_watch IS
    'Up to which message it was looked for those that wait for long; ids are by time.';
INSERT INTO relay.outbound_watch (looked_to) VALUES (relay.uuidv7_floor(now()));

CREATE FUNCTION relay.outbound_notice() RETURNS trigger
LANGUAGE plpgsql
-- Whoever ends a message may (a token that is used ends its letter): what they may not read is none
-- of their business here.
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    -- What was sent, and needs no word, pays for a look at the statement's own rows.
    IF NOT EXISTS (SELECT FROM new_rows WHERE status <> 'sent' OR notice IS NOT NULL) THEN
        RETURN NULL;
    END IF;
    INSERT INTO relay.outbound_notices AS k (message_id, action)
    SELECT n.id, COALESCE(n.notice, 'failed')
    FROM new_rows n
    JOIN relay.outbound_letters l ON l.id = n.id
    JOIN relay.outbound_contents c ON c.id = l.content_id
    WHERE (n.notice IS NOT NULL AND l.notify & 1 > 0
           OR n.notice IS NULL AND l.notify & 2 > 0
              AND (n.status IN ('failed', 'bounced')
                   OR n.status = 'cancelled' AND n.error IN ('expired', 'suppressed')))
      AND c.sender <> ''
    ON CONFLICT (message_id, action) DO UPDATE SET run_at = excluded.run_at, attempt = 0;
    IF FOUND THEN
        PERFORM pg_notify('relay_notices', '');
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION relay.outbound_notice() IS
    'Writes down of which messages that have ended submitters are to be told, and announces it.';
CREATE TRIGGER outbound_notice AFTER INSERT ON relay.outbound_log
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.outbound_notice();

CREATE FUNCTION relay.outbound_notice_late() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    INSERT INTO relay.outbound_notices (message_id, action)
    SELECT n.message_id, 'delayed'
    FROM new_rows n
    JOIN relay.outbound_letters l ON l.id = n.message_id
    JOIN relay.outbound_contents c ON c.id = l.content_id
    WHERE n.kind = 'delayed'
      AND l.notify & 4 > 0
      AND c.sender <> ''
    ON CONFLICT (message_id, action) DO NOTHING;
    IF FOUND THEN
        PERFORM pg_notify('relay_notices', '');
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION relay.outbound_notice_late() IS
    'Writes down that a receiver which took a message has reported that it waits there.';
CREATE TRIGGER outbound_notice_late AFTER INSERT ON relay.outbound_reports
    REFERENCING NEW TABLE AS new_rows
    FOR EACH STATEMENT EXECUTE FUNCTION relay.outbound_notice_late();

CREATE FUNCTION relay.outbound_watch_delays(p_after double precision, p_limit integer)
RETURNS TABLE (looked integer, waiting integer)
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
DECLARE
    since uuid;
    upto  uuid := relay.uuidv7_floor(now() - make_interval(secs => p_after));
    reach uuid;
BEGIN
    SELECT w.looked_to INTO since FROM relay.outbound_watch w FOR UPDATE;
    IF since >= upto THEN
        looked := 0;
        waiting := 0;
        RETURN NEXT;
        RETURN;
    END IF;
    -- Each message is looked at once, when it is so old, whatever else waits.
    SELECT count(*), max(s.id::text)::uuid INTO looked, reach
    FROM (SELECT d.id
          FROM relay.outbound_due d
          WHERE d.id > since AND d.id <= upto
          ORDER BY d.id
          LIMIT p_limit) s;
    IF looked < p_limit THEN
        reach := upto;
    END IF;
    INSERT INTO relay.outbound_notices (message_id, action, run_at)
    SELECT d.id, 'delayed',
           -- What is for later is not late yet.
           CASE WHEN d.node IS NULL AND d.attempt = 0 AND isfinite(d.run_at) AND d.run_at > now()
                THEN d.run_at + make_interval(secs => p_after) ELSE clock_timestamp() END
    FROM relay.outbound_due d
    JOIN relay.outbound_letters l ON l.id = d.id
    JOIN relay.outbound_contents c ON c.id = l.content_id
    WHERE d.id > since AND d.id <= reach
      AND l.notify & 4 > 0
      AND c.sender <> ''
    ON CONFLICT (message_id, action) DO NOTHING;
    GET DIAGNOSTICS waiting = ROW_COUNT;
    UPDATE relay.outbound_watch SET looked_to = reach;
    RETURN NEXT;
END
$$;
COMMENT ON FUNCTION relay.outbound_watch_delays(double precision, integer) IS
    'Writes down which messages of submitters who want to know wait for longer than so many seconds; '
    'each is looked at once.  Called by relay/outbound/notices.py.';

-- Claim: as in 0007, and these; finalise: as in 0037, and whether success is told ------------------

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
    sender_id uuid, upstream text, username text, password bytea, private boolean,
    notify smallint, orcpt text, ret text, envid text, require_tls boolean, is_notice boolean
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
               l.content_id, l.token AS letter_of, l.notify, l.orcpt,
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
           s.id, s.upstream, s.username, s.password, s.private,
           a.notify, a.orcpt, t.ret, t.envid, COALESCE(t.require_tls, false), t.route_as IS NOT NULL
    FROM addressed a
    CROSS JOIN LATERAL (
        SELECT * FROM relay.outbound_contents WHERE id = a.content_id OFFSET 0
    ) t
    LEFT JOIN LATERAL (
        SELECT * FROM relay.senders WHERE owner = a.owner AND address = lower(COALESCE(t.route_as, t.sender))
        OFFSET 0
    ) s ON true;
    -- No ORDER BY: the window has ordered the narrow rows, and nested loops keep the order.
END
$$;
COMMENT ON FUNCTION relay.outbound_claim(uuid, double precision, bigint[], smallint[], timestamptz[],
                                         integer[], integer, integer, integer) IS
    'Leases up to p_limits[i] due messages of lane and priority i, and returns all that delivering '
    'them needs.  Called by relay/outbound/queue.py.';

DROP FUNCTION relay.outbound_finalise(uuid[], bigint[], text[], double precision[], boolean[],
    double precision[], real[], text[], smallint[], text[], text[], bytea[], text[], text[], text[]);

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
    p_steps     bytea[],
    p_peers     text[],
    p_tls       text[],
    p_replies   text[],
    p_notices   text[]
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
DECLARE
    lanes bigint[];
BEGIN
    -- What is put back goes into its lane.  Apart from the statement below, which would pay at every
    -- call for partitions that it mostly does not look into.
    IF 'queued' = ANY (p_statuses) OR 'held' = ANY (p_statuses) THEN
        SELECT array_agg(r.lane ORDER BY g.place)
        INTO lanes
        FROM unnest(p_ids, p_statuses) WITH ORDINALITY AS g (id, status, place)
        LEFT JOIN LATERAL (
            SELECT relay.outbound_lane(l.owner, l.domain, s.id) AS lane
            FROM (SELECT * FROM relay.outbound_letters WHERE id = g.id OFFSET 0) l
            CROSS JOIN LATERAL (
                SELECT * FROM relay.outbound_contents WHERE id = l.content_id OFFSET 0
            ) c
            LEFT JOIN LATERAL (
                SELECT * FROM relay.senders WHERE owner = l.owner AND address = lower(COALESCE(c.route_as, c.sender))
                OFFSET 0
            ) s ON true
            WHERE g.status IN ('queued', 'held')  -- constant here: what is over is not looked up
            OFFSET 0
        ) r ON true;
    END IF;
    RETURN QUERY
    WITH given AS MATERIALIZED (
        SELECT *
        FROM unnest(p_ids, p_tokens, p_statuses, p_delays, p_begun, p_ages, p_durations, p_phases,
                    p_codes, p_enhanced, p_errors, p_steps, p_peers, p_tls, p_replies, p_notices, lanes)
             AS g (id, token, status, delay, begun, age, duration, phase, code, enhanced, error,
                   steps, peer, tls, reply, notice, lane)
    ), gone AS (
        -- id and token alone: the token says everything a state column could.
        DELETE FROM relay.outbound_due d
        USING given g
        WHERE d.id = ANY (ARRAY[g.id])
          AND d.token = g.token
          AND g.status NOT IN ('queued', 'held')
        RETURNING d.id, d.token + 1 AS next_token, d.attempt - (NOT g.begun)::integer AS attempt,
                  d.claimed_at, g.status, g.age, g.duration, g.phase, g.code, g.enhanced, g.error,
                  g.steps, g.peer, g.tls, g.reply, g.notice
    ), kept AS (
        UPDATE relay.outbound_due d
        SET token = d.token + 1,
            node = NULL,
            held_until = NULL,
            losses = 0,
            lane = COALESCE(g.lane, d.lane),
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
                  g.code, g.enhanced, g.error, g.steps, g.peer, g.tls, g.reply
    ), logged AS (
        INSERT INTO relay.outbound_log (id, finished_at, claimed_at, token, attempt, code, duration,
                                        status, phase, enhanced, error, steps, peer, tls, reply, notice)
        SELECT g.id, now(), COALESCE(now() - make_interval(secs => g.age), g.claimed_at),
               g.next_token, g.attempt, g.code, g.duration,
               g.status, g.phase, g.enhanced, g.error, g.steps, g.peer, g.tls, g.reply, g.notice
        FROM gone g
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, code, duration, outcome, phase,
                                          enhanced, error, steps, peer, tls, reply)
        SELECT k.id, COALESCE(now() - make_interval(secs => k.age), k.claimed_at, now()), k.attempt,
               k.code, k.duration, k.status, k.phase, k.enhanced, k.error, k.steps, k.peer,
               k.tls, k.reply
        FROM kept k
        WHERE k.begun
    )
    SELECT g.id FROM gone g
    UNION ALL
    SELECT k.id FROM kept k;
END
$$;
COMMENT ON FUNCTION relay.outbound_finalise(uuid[], bigint[], text[], double precision[], boolean[],
    double precision[], real[], text[], smallint[], text[], text[], bytea[], text[], text[], text[],
    text[]) IS
    'Records many outcomes, each only where its token is still the row''s; returns the ids that '
    'were.  Called by relay/outbound/queue.py.';
