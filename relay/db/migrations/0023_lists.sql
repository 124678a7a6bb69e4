-- Lists over all mailboxes: their order, whose they are, and the words of the new search.
--
-- Promises
--   * What becomes readable is read in one order over all mailboxes, too, and nothing is passed
--     over: up to relay.settled_seq() no summary will appear any more that is not there.
--   * Nobody waits for anybody because of that: whoever stores says by a shared lock from which
--     number on it may be drawing, and the reader stays below.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

-- The order over all mailboxes; new rows go to its end.
CREATE INDEX summaries_seq ON relay.summaries (seq);
-- The mailbox of a session token that comes without an address.
CREATE INDEX mailboxes_token ON relay.mailboxes (token_hash)
    WHERE is_active AND token_hash IS NOT NULL;

-- Numbers are drawn in order, and become visible out of order.  A statement that stores summaries
-- takes the shared lock (1380274274, number drawn last, modulo 2^31) before it draws
-- (relay/mailboxes/summaries.py).  The sequence is read before the locks: whoever has drawn one of
-- these numbers holds its lock still, or is visible to every statement that begins after this.
CREATE FUNCTION relay.settled_seq() RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    drawn  bigint;
    behind bigint;
BEGIN
    SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END
    INTO drawn
    FROM relay.summaries_seq_seq;
    -- A difference of more than half the range is one of somebody who has begun since.
    SELECT max((drawn - objid::bigint) & 2147483647)
           FILTER (WHERE (drawn - objid::bigint) & 2147483647 < 1073741824)
    INTO behind
    FROM pg_locks
    WHERE locktype = 'advisory'
      AND classid = 1380274274
      AND objsubid = 2
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database());
    RETURN drawn - coalesce(behind, 0);
END
$$;
COMMENT ON FUNCTION relay.settled_seq() IS
    'Every summary with this seq or a lower one that will ever be visible is visible to the next '
    'statement.';

-- The From header of a message whose summary has these details, decoded: name and address.
CREATE FUNCTION relay.sender_of(details text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT header ->> 1
    FROM json_array_elements(details::json -> 'headers') AS header
    WHERE lower(header ->> 0) = 'from'
    LIMIT 1
$$;

-- Tags: each once, in order, 20 of 100 characters at most; NULL where there are none.
CREATE FUNCTION relay.tags_of(given text[]) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
    SELECT array_agg(tag ORDER BY place)
    FROM (
        SELECT tag, min(place) AS place
        FROM (
            SELECT btrim(left(btrim(regexp_replace(one, '[[:cntrl:][:space:]]+', ' ', 'g')), 100))
                       AS tag,
                   place
            FROM unnest(given) WITH ORDINALITY AS u (one, place)
        ) cut
        WHERE tag <> ''
        GROUP BY tag
        ORDER BY min(place)
        LIMIT 20
    ) kept
$$;

-- Filters of now have recipients and senders' names in them, too; the summariser makes them anew.
TRUNCATE relay.search_chunks;
