-- Whom each delivery spoke to, how that was secured, and what was said to mail that was taken.
--
-- Promises
--   * Nothing is rewritten: attempts from before have NULL.
--   * What a server said is redacted by the relay before it comes here, as errors are.
--   * One statement records it, as before (relay/outbound/queue.py).
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.outbound_log ADD COLUMN peer text, ADD COLUMN tls text, ADD COLUMN reply text;
COMMENT ON COLUMN relay.outbound_log.peer IS
    'The server of the last attempt, host[address]:port, or host:port where no address was reached; '
    'NULL: none was spoken to.';
COMMENT ON COLUMN relay.outbound_log.tls IS 'The version of TLS that both agreed on; NULL: none.';
COMMENT ON COLUMN relay.outbound_log.reply IS
    'The words of the reply that took the message, redacted; error has those of the others.';
ALTER TABLE relay.outbound_tries ADD COLUMN peer text, ADD COLUMN tls text, ADD COLUMN reply text;

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
           l.not_after,
           c.tag,
           (SELECT t.peer FROM relay.outbound_tries t
            WHERE t.message_id = d.id ORDER BY t.attempt DESC, t.at DESC LIMIT 1) AS peer,
           (SELECT t.tls FROM relay.outbound_tries t
            WHERE t.message_id = d.id ORDER BY t.attempt DESC, t.at DESC LIMIT 1) AS tls,
           NULL::text AS reply
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
           l.not_after,
           c.tag,
           g.peer,
           g.tls,
           CASE WHEN g.reply IS NOT NULL THEN concat_ws(' ', g.code, g.enhanced, g.reply) END
    FROM relay.outbound_log g
    JOIN relay.outbound_letters l ON l.id = g.id
    JOIN relay.outbound_contents c ON c.id = l.content_id;

CREATE OR REPLACE VIEW relay.outbound_attempts AS
    SELECT message_id, attempt::integer, at, duration, outcome, phase, code::integer, enhanced,
           error, relay.outbound_steps(steps, at) AS events, peer, tls,
           CASE WHEN reply IS NOT NULL THEN concat_ws(' ', code, enhanced, reply) END AS reply
    FROM relay.outbound_tries
    UNION ALL
    SELECT id, attempt::integer, claimed_at, duration, status, phase, code::integer, enhanced,
           error, relay.outbound_steps(steps, claimed_at), peer, tls,
           CASE WHEN reply IS NOT NULL THEN concat_ws(' ', code, enhanced, reply) END
    FROM relay.outbound_log
    WHERE phase IS NOT NULL;

-- Finalise: as in 0007, and the three -------------------------------------------------------------

DROP FUNCTION relay.outbound_finalise(uuid[], bigint[], text[], double precision[], boolean[],
    double precision[], real[], text[], smallint[], text[], text[], bytea[]);

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
    p_replies   text[]
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
                    p_codes, p_enhanced, p_errors, p_steps, p_peers, p_tls, p_replies)
             AS g (id, token, status, delay, begun, age, duration, phase, code, enhanced, error,
                   steps, peer, tls, reply)
    ), gone AS (
        -- id and token alone: the token says everything a state column could.
        DELETE FROM relay.outbound_due d
        USING given g
        WHERE d.id = ANY (ARRAY[g.id])
          AND d.token = g.token
          AND g.status NOT IN ('queued', 'held')
        RETURNING d.id, d.token + 1 AS next_token, d.attempt - (NOT g.begun)::integer AS attempt,
                  d.claimed_at, g.status, g.age, g.duration, g.phase, g.code, g.enhanced, g.error,
                  g.steps, g.peer, g.tls, g.reply
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
                  g.code, g.enhanced, g.error, g.steps, g.peer, g.tls, g.reply
    ), logged AS (
        INSERT INTO relay.outbound_log (id, finished_at, claimed_at, token, attempt, code, duration,
                                        status, phase, enhanced, error, steps, peer, tls, reply)
        SELECT g.id, now(), COALESCE(now() - make_interval(secs => g.age), g.claimed_at),
               g.next_token, g.attempt, g.code, g.duration,
               g.status, g.phase, g.enhanced, g.error, g.steps, g.peer, g.tls, g.reply
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
    double precision[], real[], text[], smallint[], text[], text[], bytea[], text[], text[], text[]) IS
    'Records many outcomes, each only where its token is still the row''s; returns the ids that '
    'were.  Called by relay/outbound/queue.py.';
