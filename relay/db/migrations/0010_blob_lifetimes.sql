-- A blob for a device may have a time to live of its own.
--
-- Promises
--   * relay.device_put takes a time to live for each blob; all else is as it was.  The one that
--     takes a single one for all is still there, for nodes that have not been upgraded yet.

CREATE FUNCTION relay.device_put(
    recipients bytea[],
    envelopes  bytea[],
    ttls       double precision[],  -- seconds, of each
    max_blobs  bigint,
    max_bytes  bigint
) RETURNS TABLE (ordinal bigint, id bigint, expires_at timestamptz)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    wanted bytea[] := ARRAY(SELECT DISTINCT r FROM unnest(recipients) AS r ORDER BY r);
    taken  integer;
    begun  timestamptz := clock_timestamp();
BEGIN
    LOOP
        INSERT INTO relay.device_inboxes (recipient, missed, told)
        SELECT r, s.given, s.given
        FROM unnest(wanted) AS r
        CROSS JOIN (SELECT last_value - 1 + is_called::integer AS given
                    FROM relay.device_inbox_id_seq) s
        ORDER BY r
        ON CONFLICT DO NOTHING;
        PERFORM FROM relay.device_inboxes i
        WHERE i.recipient = ANY (wanted)
        ORDER BY i.recipient
        FOR NO KEY UPDATE;
        GET DIAGNOSTICS taken = ROW_COUNT;
        -- One may have been deleted, empty, between the two.
        EXIT WHEN taken = cardinality(wanted);
    END LOOP;

    RETURN QUERY
    WITH asked AS (
        SELECT a.ordinal, a.recipient, a.envelope, octet_length(a.envelope)::bigint AS size,
               begun + make_interval(secs => a.ttl) AS until
        FROM unnest(recipients, envelopes, ttls) WITH ORDINALITY
             AS a (recipient, envelope, ttl, ordinal)
    ), fitting AS (
        SELECT f.ordinal, f.recipient, f.envelope, f.until
        FROM (SELECT a.*,
                     i.blobs + row_number() OVER each AS blobs_then,
                     i.bytes + sum(a.size) OVER each AS bytes_then
              FROM asked a
              JOIN relay.device_inboxes i ON i.recipient = a.recipient
              WINDOW each AS (PARTITION BY a.recipient ORDER BY a.ordinal)) f
        WHERE f.blobs_then <= max_blobs
          AND f.bytes_then <= max_bytes
    ), numbered AS (
        SELECT f.*, nextval('relay.device_inbox_id_seq') AS id
        FROM (SELECT * FROM fitting ORDER BY ordinal) f
    ), stored AS (
        INSERT INTO relay.device_inbox (id, recipient, envelope, expires_at)
        SELECT n.id, n.recipient, n.envelope, n.until
        FROM numbered n
    )
    SELECT n.ordinal, n.id, n.until
    FROM numbered n;
END
$$;
COMMENT ON FUNCTION relay.device_put(bytea[], bytea[], double precision[], bigint, bigint) IS
    'Store many blobs in one transaction; what does not fit its inbox is left out of the answer.';

CREATE OR REPLACE FUNCTION relay.device_put(
    recipients bytea[],
    envelopes  bytea[],
    ttl        double precision,  -- seconds
    max_blobs  bigint,
    max_bytes  bigint
) RETURNS TABLE (ordinal bigint, id bigint, expires_at timestamptz)
LANGUAGE sql
AS $$
    SELECT *
    FROM relay.device_put(
        recipients, envelopes, array_fill(ttl, ARRAY[cardinality(recipients)]), max_blobs, max_bytes
    );
$$;
