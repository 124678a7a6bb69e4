-- A week of outbound mail gets its partitions although the default ones hold rows of it.
--
-- Promises
--   * Rows that were stored while no partition covered them (weeks without a relay, a clock far
--     ahead) move into their week's in the transaction that makes it: each is read once, before
--     and after.
--   * Writers wait while at most 50,000 rows of each table move, with 64 MiB of contents: about a
--     second.  Of a table with more in that week nothing moves, and the week stays in its default
--     partition, where relay.outbound_roll deletes row by row what is past its time.
--     (Attaching reads the default partitions through besides, as ever: half a second for a million
--     rows.)
--   * A week that cannot be made keeps neither the others from being made nor any from being
--     dropped.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

-- As in 0002, with what the default partition holds.
CREATE OR REPLACE FUNCTION relay.outbound_partition(week timestamptz) RETURNS integer
LANGUAGE plpgsql
-- A report that reads for an hour must not make every delivery wait behind this.
SET lock_timeout = '500ms'
AS $$
DECLARE
    most_rows  CONSTANT integer := 50000;
    most_bytes CONSTANT bigint := 64 * 1024 * 1024;
    lower_at   timestamptz := date_trunc('week', week, 'UTC');
    upper_at   timestamptz := lower_at + interval '7 days';
    suffix     text := to_char(lower_at AT TIME ZONE 'UTC', '"_p"YYYYMMDD');
    -- What is to be made: table, key, its bounds; and whether rows are to be moved.
    parents    text[] := ARRAY[]::text[];
    keys       text[] := ARRAY[]::text[];
    lowers     text[] := ARRAY[]::text[];
    uppers     text[] := ARRAY[]::text[];
    moves      boolean := false;
    parent     text;
    key        text;
    lower_end  text;
    upper_end  text;
    held       bigint;
    bytes      bigint;
BEGIN
    FOREACH parent IN ARRAY ARRAY['outbound_contents', 'outbound_letters', 'outbound_log', 'outbound_tries']
    LOOP
        CONTINUE WHEN to_regclass('relay.' || parent || suffix) IS NOT NULL;
        IF parent IN ('outbound_contents', 'outbound_letters') THEN
            key := 'id';
            lower_end := relay.uuidv7_floor(lower_at);
            upper_end := relay.uuidv7_floor(upper_at);
        ELSE
            key := CASE parent WHEN 'outbound_log' THEN 'finished_at' ELSE 'at' END;
            lower_end := lower_at;
            upper_end := upper_at;
        END IF;
        EXECUTE format('SELECT count(*), COALESCE(sum(size), 0)'
                       ' FROM (SELECT %s AS size FROM relay.%I WHERE %I >= %L AND %I < %L LIMIT %s) r',
                       CASE parent WHEN 'outbound_contents' THEN 'size' ELSE '0' END,
                       parent || '_rest', key, lower_end, key, upper_end, most_rows + 1)
        INTO held, bytes;
        CONTINUE WHEN held > most_rows OR bytes > most_bytes;
        parents := parents || parent;
        keys := keys || key;
        lowers := lowers || lower_end;
        uppers := uppers || upper_end;
        moves := moves OR held > 0;
    END LOOP;
    IF moves THEN
        -- All locks before the work: while rows move, somebody would have one table and wait for
        -- another, and neither could go on.  Who writes has written, or waits before it has chosen
        -- the default partition, which would refuse the row afterwards.
        FOR i IN 1..cardinality(parents) LOOP
            EXECUTE format('LOCK TABLE ONLY relay.%I IN SHARE ROW EXCLUSIVE MODE', parents[i]);
        END LOOP;
        -- What attaching takes.
        FOR i IN 1..cardinality(parents) LOOP
            EXECUTE format('LOCK TABLE relay.%I IN ACCESS EXCLUSIVE MODE', parents[i] || '_rest');
        END LOOP;
    END IF;
    FOR i IN 1..cardinality(parents) LOOP
        -- Attaching locks the table less than creating the partition in place would.
        EXECUTE format('CREATE TABLE relay.%I (LIKE relay.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS INCLUDING STORAGE)',
                       parents[i] || suffix, parents[i]);
        IF parents[i] = 'outbound_contents' THEN
            -- Ordinary letters stay in the heap, which saves a second table and a second index.
            EXECUTE format('ALTER TABLE relay.%I SET (toast_tuple_target = 8160)', parents[i] || suffix);
        END IF;
        IF moves THEN
            -- Past the parent, so that its triggers take no old outcome for a new one.
            EXECUTE format('WITH moved AS (DELETE FROM relay.%I WHERE %I >= %L AND %I < %L RETURNING *)'
                           ' INSERT INTO relay.%I SELECT * FROM moved',
                           parents[i] || '_rest', keys[i], lowers[i], keys[i], uppers[i],
                           parents[i] || suffix);
        END IF;
        EXECUTE format('ALTER TABLE relay.%I ATTACH PARTITION relay.%I FOR VALUES FROM (%L) TO (%L)',
                       parents[i], parents[i] || suffix, lowers[i], uppers[i]);
    END LOOP;
    RETURN cardinality(parents);
END
$$;
COMMENT ON FUNCTION relay.outbound_partition(timestamptz) IS
    'Makes the partitions of the week that holds an instant, with what the default ones hold of it, '
    'unless that is too much; returns how many it made.';

-- As in 0002, but for what becomes of a week that cannot be made.
CREATE OR REPLACE FUNCTION relay.outbound_roll(keep interval DEFAULT '30 days') RETURNS integer
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
        EXCEPTION
            WHEN lock_not_available THEN
                NULL;  -- there is time until it is needed, and then the default partition
            WHEN OTHERS THEN
                -- Likewise; but the next call may not succeed either: for the server's log.
                RAISE WARNING 'no partitions for week % from now: % (%)', week, SQLERRM, SQLSTATE;
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
