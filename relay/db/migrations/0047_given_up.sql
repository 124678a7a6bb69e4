-- Mail for who never answers is given up by its age, and not only by an attempt of its own.
--
-- Promises
--   * Only what waits: nothing that is leased (also where its worker vanished) or held, and nothing
--     while the queue is paused.
--   * It ends as by a last attempt that failed: `failed`, so with the same notice and webhook.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE FUNCTION relay.outbound_give_up(
    p_lanes    bigint[],
    p_lifetime double precision,
    p_direct   boolean,
    p_why      text,
    p_limit    integer
) RETURNS SETOF uuid
LANGUAGE sql
SET enable_seqscan = off
AS $$
    WITH gone AS (
        DELETE FROM relay.outbound_due d
        WHERE d.id = ANY (ARRAY(
            SELECT p.id
            FROM relay.outbound_due p
            WHERE p.lane = ANY (p_lanes)
              AND p.node IS NULL
              AND isfinite(p.run_at)
              -- What was not claimed yet has been due since run_at.
              AND COALESCE(p.first_due_at, p.run_at) <= now() - make_interval(secs => p_lifetime)
              AND NOT (SELECT c.paused FROM relay.outbound_control c)
              AND relay.outbound_is_direct(p.id, p_direct)
            LIMIT p_limit
            FOR UPDATE OF p SKIP LOCKED
        ))
        RETURNING d.id, d.claimed_at, d.token, d.attempt
    )
    INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, phase, enhanced, error)
    SELECT g.id, g.claimed_at, g.token + 1, g.attempt, 'failed', 'connect', '4.4.7',
           'too old, and nobody takes mail for its domain; ' || p_why
    FROM gone g
    RETURNING id
$$;
COMMENT ON FUNCTION relay.outbound_give_up(bigint[], double precision, boolean, text, integer) IS
    'Gives up to p_limit waiting messages of lanes up that are older than p_lifetime seconds and go '
    'directly: an attempt has just met p_why there, as all have for long.  Called by '
    'relay/outbound/queue.py.';
REVOKE EXECUTE ON FUNCTION
    relay.outbound_give_up(bigint[], double precision, boolean, text, integer) FROM PUBLIC;
