-- The survey says whose each lane is: owners take turns, and the lanes of an owner.
--
-- Promises
--   * What a relay of before reads of it stands where it stood.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

DROP FUNCTION relay.outbound_survey();

CREATE FUNCTION relay.outbound_survey()
RETURNS TABLE (lane bigint, priority smallint, due_at timestamptz, domain text, owner uuid)
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
    SELECT s.lane, s.priority, s.run_at, l.domain, l.owner
    FROM strips s
    CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = s.id OFFSET 0) l
    WHERE isfinite(s.run_at);
END
$$;
COMMENT ON FUNCTION relay.outbound_survey() IS
    'Each lane and priority with anything in it, when its first is due, and whose it is.';
