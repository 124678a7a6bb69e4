-- PostgreSQL's clock and chance, replaced by those of the simulation.
--
-- The schema `sim` stands before pg_catalog on the search path, so that what the product's SQL calls
-- now(), clock_timestamp(), gen_random_uuid() or random() is found here.  The time is the last value
-- of a sequence: no transaction, everybody sees it at once.  Cheap, as the system's are: the planner
-- is told so, or it would plan otherwise than in life.
CREATE SCHEMA sim;
GRANT USAGE ON SCHEMA sim TO PUBLIC;
CREATE UNLOGGED SEQUENCE sim.clock;
CREATE UNLOGGED SEQUENCE sim.throws;
GRANT SELECT ON SEQUENCE sim.clock TO PUBLIC;
GRANT SELECT, USAGE ON SEQUENCE sim.throws TO PUBLIC;

CREATE FUNCTION sim.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE COST 1
SET search_path = pg_catalog
AS $$ SELECT timestamptz 'epoch' + last_value * interval '1 microsecond' FROM sim.clock $$;

-- The instant at which a transaction first asked: kept for the rest of it, as now() is.
CREATE FUNCTION sim.now() RETURNS timestamptz LANGUAGE plpgsql STABLE COST 1
SET search_path = pg_catalog
AS $$
DECLARE
    kept text := current_setting('sim.began', true);
BEGIN
    IF kept IS NULL OR kept = '' THEN
        kept := set_config('sim.began', (SELECT last_value::text FROM sim.clock), true);
    END IF;
    RETURN timestamptz 'epoch' + kept::bigint * interval '1 microsecond';
END
$$;

CREATE FUNCTION sim.transaction_timestamp() RETURNS timestamptz LANGUAGE sql STABLE COST 1
AS $$ SELECT sim.now() $$;

CREATE FUNCTION sim.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE COST 1
AS $$ SELECT sim.clock_timestamp() $$;

-- A crash sets the throws back to the beginning (they are unlogged), but never the clock.
CREATE FUNCTION sim.gen_random_uuid() RETURNS uuid LANGUAGE sql VOLATILE COST 1
SET search_path = pg_catalog
AS $$
    SELECT encode(
               set_byte(set_byte(thrown, 6, get_byte(thrown, 6) & 15 | 64),
                        8, get_byte(thrown, 8) & 63 | 128),
               'hex'
           )::uuid
    FROM (SELECT decode(md5(current_setting('sim.seed') || '/' || last_value || '/'
                            || nextval('sim.throws')), 'hex') AS thrown
          FROM sim.clock) AS _
$$;

CREATE FUNCTION sim.random() RETURNS double precision LANGUAGE sql VOLATILE COST 1
SET search_path = pg_catalog
AS $$
    SELECT ('x' || left(md5('random/' || current_setting('sim.seed') || '/' || last_value || '/'
                            || nextval('sim.throws')), 12))::bit(48)::bigint / 281474976710656.0
    FROM sim.clock
$$;
