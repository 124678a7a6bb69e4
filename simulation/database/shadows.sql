-- PostgreSQL's clock and chance, replaced by those of the simulation.
--
-- The schema `sim` stands before pg_catalog on the search path, so that what the product's SQL calls
-- now(), clock_timestamp(), gen_random_uuid(), random() or pg_notify() is found here.  The time is
-- in the file `clock` of the data directory (microseconds since 1970, 16 digits), which the
-- simulation writes: no round trip to set it, no transaction, everybody sees it at once.  Cheap, as
-- the system's are: the planner is told so, or it would plan otherwise than in life.
CREATE SCHEMA sim;
GRANT USAGE ON SCHEMA sim TO PUBLIC;
CREATE UNLOGGED SEQUENCE sim.throws;
CREATE UNLOGGED SEQUENCE sim.notes;
GRANT SELECT, USAGE ON ALL SEQUENCES IN SCHEMA sim TO PUBLIC;

CREATE FUNCTION sim.microseconds() RETURNS bigint LANGUAGE sql VOLATILE COST 1
RETURN pg_read_file('clock', 0, 16)::bigint;

CREATE FUNCTION sim.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE COST 1
RETURN timestamptz 'epoch' + sim.microseconds() * interval '1 microsecond';

-- The instant at which a transaction first asked: kept for the rest of it, as now() is.
CREATE FUNCTION sim.now() RETURNS timestamptz LANGUAGE plpgsql STABLE COST 1
SET search_path = pg_catalog
AS $$
DECLARE
    kept text := current_setting('sim.began', true);
BEGIN
    IF kept IS NULL OR kept = '' THEN
        kept := set_config('sim.began', pg_read_file('clock', 0, 16), true);
    END IF;
    RETURN timestamptz 'epoch' + kept::bigint * interval '1 microsecond';
END
$$;

CREATE FUNCTION sim.transaction_timestamp() RETURNS timestamptz LANGUAGE sql STABLE COST 1
RETURN sim.now();

CREATE FUNCTION sim.statement_timestamp() RETURNS timestamptz LANGUAGE sql STABLE COST 1
RETURN sim.clock_timestamp();

-- A crash sets the throws back to the beginning (they are unlogged), but never the clock.
CREATE FUNCTION sim.gen_random_uuid() RETURNS uuid LANGUAGE sql VOLATILE COST 1
SET search_path = pg_catalog
AS $$
    SELECT encode(
               set_byte(set_byte(thrown, 6, get_byte(thrown, 6) & 15 | 64),
                        8, get_byte(thrown, 8) & 63 | 128),
               'hex'
           )::uuid
    FROM (SELECT decode(md5(current_setting('sim.seed') || '/' || pg_read_file('clock', 0, 16) || '/'
                            || nextval('sim.throws')), 'hex') AS thrown) AS _
$$;

CREATE FUNCTION sim.random() RETURNS double precision LANGUAGE sql VOLATILE COST 1
SET search_path = pg_catalog
AS $$
    SELECT ('x' || left(md5('random/' || current_setting('sim.seed') || '/'
                            || pg_read_file('clock', 0, 16) || '/'
                            || nextval('sim.throws')), 12))::bit(48)::bigint / 281474976710656.0
$$;

-- The server tells a client of a change of application_name with the answer: so the simulation sees
-- which transactions notify, and asks after the rest of the server only then.
CREATE FUNCTION sim.pg_notify(channel text, payload text) RETURNS void LANGUAGE sql VOLATILE
SET search_path = pg_catalog
AS $$
    SELECT set_config('application_name', 'notified ' || nextval('sim.notes'), false);
    SELECT pg_catalog.pg_notify(channel, payload)
$$;

-- What was read, and marked read, of a mailbox that was over: by the clock of the statement that
-- read it.  Large messages are left out: they are marked after they were read.
CREATE TABLE sim.read_late (address text, by double precision);
CREATE FUNCTION sim.note_read() RETURNS trigger LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO sim.read_late
    SELECT b.address, extract(epoch FROM sim.now() - b.expires_at)
    FROM relay.mailboxes b
    WHERE b.id = NEW.mailbox_id
      AND b.expires_at <= sim.now()
      AND NEW.size < 40000;
    RETURN NULL;
END
$$;
