-- What receivers' replies have asked for: who is suspended or slowed, until when and why; and rates
-- with a burst of their own, of which a node gives back what it did not spend.
--
-- Promises
--   * What one node has learned of a receiver holds on all of them, and after a restart, until its
--     time is over by the database's clock or somebody removes its row.
--   * A row is of a receiver, a source and a kind: whoever learns it again makes it longer.
--   * Changes are announced on relay_shaping.
--   * A relay of before goes on beside this one: it knows of no receivers, and leases rates by the
--     function that it knows, which is the new one now.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.outbound_shaping (
    receiver text COLLATE "C" NOT NULL,
    source   text COLLATE "C" NOT NULL DEFAULT '',
    kind     text NOT NULL CHECK (kind IN ('suspended', 'slowed')),
    factor   double precision NOT NULL DEFAULT 1 CHECK (factor > 0 AND factor <= 1),
    domain   text COLLATE "C" NOT NULL,
    reason   text NOT NULL,
    since    timestamptz NOT NULL DEFAULT now(),
    until    timestamptz NOT NULL,
    PRIMARY KEY (receiver, source, kind)
);
COMMENT ON TABLE relay.outbound_shaping IS
    'Receivers of direct delivery that are suspended or slowed by what they replied.  A row that is '
    'removed ends it: nodes follow within a moment.';
COMMENT ON COLUMN relay.outbound_shaping.receiver IS
    'A provider of the traffic rules by its name, or an MX site (mx:…).';
COMMENT ON COLUMN relay.outbound_shaping.source IS
    'The source that the replies were given to (RELAY_OUTBOUND__SOURCES); empty: it has no name.';
COMMENT ON COLUMN relay.outbound_shaping.factor IS
    'What is left of the connections and the rate of one that is slowed.';
COMMENT ON COLUMN relay.outbound_shaping.domain IS
    'The recipient domain whose mail was answered so, last.';
COMMENT ON COLUMN relay.outbound_shaping.reason IS 'The reply, redacted.';

CREATE FUNCTION relay.outbound_shaping_changed() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('relay_shaping', '');
    RETURN NULL;
END;
$$;
COMMENT ON FUNCTION relay.outbound_shaping_changed() IS
    'Announces that receivers were suspended, slowed, or let go.';
CREATE TRIGGER outbound_shaping_changed
    AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON relay.outbound_shaping
    FOR EACH STATEMENT EXECUTE FUNCTION relay.outbound_shaping_changed();

COMMENT ON COLUMN relay.outbound_rates.key IS
    'route:<scheme://host:port>, domain:<destination domain, in lower case>, site:<provider of the '
    'traffic rules, or MX site> or source:<name of a source that is warmed up>.';

CREATE FUNCTION relay.outbound_lease(
    p_keys     text[],
    p_wants    integer[],
    p_defaults double precision[],
    p_bursts   double precision[],
    p_unspent  integer[],
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
        SELECT r.key, r.tat, w.want, w.unspent, COALESCE(r.rate, w.rate) AS rate,
               GREATEST(COALESCE(r.burst, r.rate, w.burst, w.rate), 1) AS burst
        FROM relay.outbound_rates r
        JOIN unnest(p_keys, p_wants, p_defaults, p_bursts, p_unspent)
             AS w (key, want, rate, burst, unspent) ON w.key = r.key
        ORDER BY r.key
        FOR NO KEY UPDATE OF r
    ), timed AS MATERIALIZED (
        -- The clock after the locks: whoever waited for one must not look back.
        SELECT l.*, c.at,
               GREATEST(l.tat - make_interval(secs => l.unspent / l.rate), c.at) AS start
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
    SET tat = CASE WHEN c.count > 0 OR c.unspent > 0
                   THEN c.start + make_interval(secs => c.count / c.rate)
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
COMMENT ON FUNCTION relay.outbound_lease(text[], integer[], double precision[], double precision[],
                                         integer[], double precision) IS
    'Takes back p_unspent[i] messages of p_keys[i] and grants up to p_wants[i]; its rate is its '
    'row''s or p_defaults[i], with the burst p_bursts[i] (NULL: one second''s worth); a key without '
    'a rate has no limit and no row in the answer.  Called by relay/outbound/rates.py.';

CREATE OR REPLACE FUNCTION relay.outbound_lease(
    p_keys     text[],
    p_wants    integer[],
    p_defaults double precision[],
    p_worth    double precision
) RETURNS TABLE (key text, granted integer, wait double precision)
LANGUAGE plpgsql
AS $$
BEGIN
    RETURN QUERY
    SELECT l.key, l.granted, l.wait
    FROM relay.outbound_lease(p_keys, p_wants, p_defaults,
                              array_fill(NULL::double precision, ARRAY[cardinality(p_keys)]),
                              array_fill(0, ARRAY[cardinality(p_keys)]), p_worth) l;
END
$$;
COMMENT ON FUNCTION relay.outbound_lease(text[], integer[], double precision[], double precision) IS
    'The same as that of six, for relays of before: with no burst of its own, and nothing unspent.';
