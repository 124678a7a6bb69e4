-- A lane is an owner's mail to a domain by one route: the sender whose upstream it takes is part
-- of it, so mail of one sender does not wait behind a dead upstream of another of the same owner.
--
-- Promises
--   * Mail without a sender of its own stays in the lane that it had: what waits, and what a relay
--     of before this migration queues.
--   * What is queued is not rewritten here.  A message whose lane is not that of its route any more
--     (its sender was made, replaced or removed since; or it was queued before this migration, or
--     beside it, by a relay of before) is delivered all the same, and is in its lane from when it
--     is put back: deferred, given back or held.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE FUNCTION relay.outbound_lane(owner uuid, domain text, sender uuid) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
AS $$
BEGIN
    -- relay.outbound.lanes.lane_of is the same in Python; without a sender, so is the other one.
    -- PL/pgSQL, as SQL that cannot be inlined is planned at each call before PostgreSQL 18.
    RETURN ('x' || encode(substr(sha256(uuid_send(owner) || COALESCE(uuid_send(sender), '')
                                        || convert_to(domain, 'UTF8')), 1, 8), 'hex'))
           ::bit(64)::bigint;
END
$$;
COMMENT ON FUNCTION relay.outbound_lane(uuid, text, uuid) IS
    'The lane of an owner''s mail to a domain through the upstream of a sender (relay.senders.id); '
    'NULL: through the relay''s own.';
COMMENT ON COLUMN relay.outbound_due.lane IS
    'relay.outbound_lane(owner, domain, sender): what may be throttled by itself and gets a fair '
    'share.  Of the sender as it was when the message was queued, or put back last.';

-- For relay.send, whose callers may not read relay.senders (it holds passwords, encrypted): of the
-- nil owner, whose mail that is, and of nobody else.
CREATE FUNCTION relay.outbound_lane_from(address text, domain text) RETURNS bigint
LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    nil CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
BEGIN
    RETURN relay.outbound_lane(nil, domain, (SELECT s.id
                                             FROM relay.senders s
                                             WHERE s.owner = nil
                                               AND s.address = lower(outbound_lane_from.address)));
END
$$;
COMMENT ON FUNCTION relay.outbound_lane_from(text, text) IS
    'The lane of what relay.send queues from an address to a domain.';

-- relay.send: as in 0012, and the sender's lane ---------------------------------------------------

CREATE OR REPLACE FUNCTION relay.send(
    sender          text,
    recipient       text,
    subject         text,
    text_body       text,
    html_body       text DEFAULT NULL,
    priority        text DEFAULT 'normal',
    send_at         timestamptz DEFAULT NULL,
    idempotency_key text DEFAULT NULL,
    not_after       timestamptz DEFAULT NULL
) RETURNS uuid
LANGUAGE plpgsql
SET enable_seqscan = off
AS $$
#variable_conflict use_variable
DECLARE
    nil       CONSTANT uuid := '00000000-0000-0000-0000-000000000000';
    from_box  record;
    to_box    record;
    rank      smallint := array_position(ARRAY['high', 'normal', 'bulk'], priority) - 1;
    message   uuid := relay.uuidv7();
    host      text;
    digest    bytea;
    known     relay.outbound_keys;
    at        timestamptz := clock_timestamp();
BEGIN
    from_box := relay.outbound_mailbox('sender', sender);
    to_box := relay.outbound_mailbox('recipient', recipient);
    IF subject IS NULL OR subject ~ '[[:cntrl:]]' OR octet_length(subject) > 2000 THEN
        RAISE EXCEPTION 'subject must be one line of at most 2000 bytes'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF text_body IS NULL AND html_body IS NULL THEN
        RAISE EXCEPTION 'text_body or html_body must be given'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF rank IS NULL THEN
        RAISE EXCEPTION 'priority must be high, normal or bulk'
            USING ERRCODE = 'invalid_parameter_value', DETAIL = COALESCE(left(priority, 20), 'NULL');
    END IF;
    IF NOT isfinite(send_at) THEN
        RAISE EXCEPTION 'send_at must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT isfinite(not_after) THEN
        RAISE EXCEPTION 'not_after must be an instant' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF not_after <= send_at THEN
        RAISE EXCEPTION 'not_after must be later than send_at'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF idempotency_key IS NOT NULL THEN
        IF idempotency_key = '' OR octet_length(idempotency_key) > 255 THEN
            RAISE EXCEPTION 'idempotency_key must have 1 to 255 bytes'
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        -- Without not_after it is what it was before there was one: keys outlive an upgrade.
        digest := sha256(convert_to(
            (jsonb_build_array(sender, recipient, subject, text_body, html_body, priority, send_at)
             || CASE WHEN not_after IS NULL THEN '[]' ELSE jsonb_build_array(not_after) END)::text,
            'UTF8'));
        -- Of two at once the second waits here for the first's transaction.
        INSERT INTO relay.outbound_keys AS k (owner, key, body_hash, ids)
        VALUES (nil, idempotency_key, digest, ARRAY[message])
        ON CONFLICT ON CONSTRAINT outbound_keys_pkey DO UPDATE
        SET body_hash = excluded.body_hash, ids = excluded.ids, created_at = excluded.created_at
        WHERE k.created_at < clock_timestamp() - interval '24 hours';
        IF NOT FOUND THEN
            SELECT * INTO STRICT known
            FROM relay.outbound_keys k
            WHERE k.owner = nil AND k.key = idempotency_key;
            IF known.body_hash <> digest THEN
                RAISE EXCEPTION 'idempotency_key was used for another message within 24 hours'
                    USING ERRCODE = 'unique_violation';
            END IF;
            RETURN known.ids[1];
        END IF;
    END IF;
    host := lower(split_part(to_box.address, '@', 2));
    INSERT INTO relay.outbound_contents (id, sender, sender_name, subject, text_body, html_body, size, created_at)
    VALUES (message, from_box.address, from_box.name, subject, text_body, html_body,
            COALESCE(octet_length(text_body), 0) + COALESCE(octet_length(html_body), 0), at);
    INSERT INTO relay.outbound_letters (id, content_id, owner, recipient, recipient_name, address,
                                        domain, priority, created_at, not_after)
    VALUES (message, message, nil, to_box.address, to_box.name, lower(to_box.address), host, rank, at,
            not_after);
    INSERT INTO relay.outbound_due (id, lane, run_at, priority, not_after)
    VALUES (message, relay.outbound_lane_from(from_box.address, host), COALESCE(send_at, at), rank,
            not_after);
    -- Equal payloads of a transaction are one notification.  That of high mail says so: nothing
    -- lower is begun while it is claimed.
    PERFORM pg_notify('relay_outbound', CASE WHEN rank = 0 AND send_at IS NULL THEN 'high' ELSE '' END);
    RETURN message;
END
$$;

-- Finalise: as in 0033, and what is put back goes into its lane -----------------------------------

CREATE OR REPLACE FUNCTION relay.outbound_finalise(
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
                SELECT * FROM relay.senders WHERE owner = l.owner AND address = lower(c.sender)
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
                    p_codes, p_enhanced, p_errors, p_steps, p_peers, p_tls, p_replies, lanes)
             AS g (id, token, status, delay, begun, age, duration, phase, code, enhanced, error,
                   steps, peer, tls, reply, lane)
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
