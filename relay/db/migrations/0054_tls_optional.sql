-- A message may ask to go whatever TLS is like: TLS-Required: No (RFC 8689, 3), which a claim tells.
--
-- Promises
--   * What was queued before asks for nothing of the kind, whatever its header says.
--   * A relay of before goes on beside this one: it takes such mail for any other.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

COMMENT ON COLUMN relay.outbound_contents.require_tls IS
    'Whether it leaves by verified TLS alone, to servers with REQUIRETLS (RFC 8689); false: whatever '
    'TLS its domain asks for, as its TLS-Required: No says; null: neither.';

-- As in 0049, with what stands there.
CREATE OR REPLACE FUNCTION relay.outbound_claim(
    p_node         uuid,
    p_lease        double precision,
    p_lanes        bigint[],
    p_priorities   smallint[],
    p_floors       timestamptz[],
    p_limits       integer[],
    p_max_attempts integer,
    p_max_losses   integer,
    p_inline       integer,
    p_direct       boolean,
    p_heard        timestamptz
) RETURNS TABLE (
    id uuid, token bigint, lane bigint, priority smallint, due_at timestamptz,
    first_due_at timestamptz,
    attempt smallint, turn smallint, lost boolean, quarantined boolean, suppressed boolean,
    expired boolean, parked boolean, letter_of bigint,
    owner uuid, recipient text, recipient_name text, domain text, hold_unknown boolean,
    created_at timestamptz, not_after timestamptz,
    content_id uuid, sender text, sender_name text, subject text, size integer, has_body boolean,
    text_body text, html_body text, headers jsonb, attachments jsonb, blob bytea,
    sender_id uuid, upstream text, username text, password bytea, private boolean,
    notify smallint, orcpt text, ret text, envid text, require_tls boolean, is_notice boolean
)
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
    -- The end of the lease; the caller counts from before it called, so it gives up earlier.
    lease_end timestamptz := clock_timestamp() + make_interval(secs => p_lease);
BEGIN
    IF (SELECT paused FROM relay.outbound_control) THEN
        RETURN;
    END IF;
    RETURN QUERY
    WITH wanted AS MATERIALIZED (
        SELECT *
        FROM unnest(p_lanes, p_priorities, p_floors, p_limits)
             WITH ORDINALITY AS w (lane, priority, floor, quota, place)
    ), picked AS MATERIALIZED (
        -- MATERIALIZED, or LIMIT would be forgotten where the planner runs the sub-select again.
        -- floor: below it lie only dead index entries, which an old snapshot (a backup, a report)
        -- keeps for as long as it lives.
        SELECT w.place, n.*
        FROM wanted w
        CROSS JOIN LATERAL (
            SELECT d.id, d.run_at, d.node IS NOT NULL AS lost, d.claimed_at, d.attempt,
                   -- A message that took its worker down several times, or whose last attempt
                   -- ended in the dark, is set aside instead of tried once more.
                   d.node IS NOT NULL AND (d.losses + 1 >= p_max_losses
                                           OR d.attempt - d.base >= p_max_attempts
                                              AND NOT relay.outbound_is_direct(d.id, p_direct))
                       AS quarantined
            FROM relay.outbound_due d
            WHERE d.lane = w.lane
              AND d.priority = w.priority
              AND d.run_at >= w.floor
              AND d.run_at <= now()
              AND (d.node IS NULL OR d.run_at <= p_heard)
            ORDER BY d.run_at
            LIMIT w.quota
            FOR NO KEY UPDATE SKIP LOCKED
        ) n
    ), claimed AS MATERIALIZED (
        UPDATE relay.outbound_due d
        SET token = d.token + 1,
            attempt = d.attempt + (NOT p.quarantined)::integer,
            losses = d.losses + p.lost::integer,
            run_at = CASE WHEN p.quarantined THEN 'infinity' ELSE lease_end END,
            node = CASE WHEN p.quarantined THEN NULL ELSE p_node END,
            claimed_at = now(),
            first_due_at = COALESCE(d.first_due_at, p.run_at)
        FROM picked p
        WHERE d.id = ANY (ARRAY[p.id])
        RETURNING p.place, p.run_at AS due_at, p.lost, p.quarantined,
                  p.claimed_at AS began_at, p.attempt AS last_attempt,
                  d.id, d.token, d.lane, d.priority, d.attempt, (d.attempt - d.base)::smallint AS turn,
                  d.first_due_at, d.not_after
    ), noted AS (
        INSERT INTO relay.outbound_tries (message_id, at, attempt, duration, outcome, error)
        SELECT c.id, c.began_at, c.last_attempt, extract(epoch FROM now() - c.began_at), 'lost',
               'the lease ran out; whether the message was delivered is unknown'
        FROM claimed c
        WHERE c.lost
    ), addressed AS MATERIALIZED (
        SELECT c.*, l.owner, l.recipient, l.recipient_name, l.domain, l.hold_unknown, l.created_at,
               l.content_id, l.token AS letter_of, l.notify, l.orcpt,
               -- A letter is good for as long as its token, as that is now; a deleted one is over.
               CASE WHEN l.token IS NULL THEN COALESCE(c.not_after <= clock_timestamp(), false)
                    ELSE COALESCE(k.over, true) END AS expired,
               COALESCE(NOT k.over AND NOT k.fits, false) AS parked,
               EXISTS (SELECT FROM relay.suppressions s
                       WHERE s.address = l.address
                         AND (s.owner = '00000000-0000-0000-0000-000000000000'
                              OR s.owner = l.owner)
                         -- Who unsubscribed did so from that owner's bulk mail, the nil owner's, too.
                         AND (s.cause <> 'unsubscribed'
                              OR s.owner = l.owner AND c.priority = 2)) AS suppressed,
               -- What many recipients share is read and sent once: they lie side by side.
               l.content_id IS DISTINCT FROM
                   lag(l.content_id) OVER (ORDER BY c.place, c.due_at) AS first
        FROM claimed c
        CROSS JOIN LATERAL (SELECT * FROM relay.outbound_letters WHERE id = c.id OFFSET 0) l
        LEFT JOIN LATERAL (
            SELECT t.consumed_at IS NOT NULL
                   OR t.expires_at <= extract(epoch FROM clock_timestamp()) AS over,
                   a.status = CASE t.action WHEN 'activation' THEN 'provisioned'
                                            ELSE 'active' END::relay.account_status AS fits
            FROM relay.tokens t
            JOIN relay.accounts a ON a.id = t.account
            WHERE l.token IS NOT NULL  -- constant here: other mail does not pay for this
              AND t.id = l.token
            OFFSET 0
        ) k ON true
    )
    SELECT a.id, a.token, a.lane, a.priority, a.due_at, a.first_due_at, a.attempt, a.turn, a.lost,
           a.quarantined, a.suppressed, a.expired, a.parked, a.letter_of, a.owner, a.recipient,
           a.recipient_name, a.domain, a.hold_unknown, a.created_at, a.not_after, a.content_id,
           t.sender, t.sender_name, t.subject, t.size, a.first AND t.size <= p_inline,
           CASE WHEN a.first AND t.size <= p_inline THEN t.text_body END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.html_body END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.headers END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.attachments END,
           CASE WHEN a.first AND t.size <= p_inline THEN t.blob END,
           s.id, s.upstream, s.username, s.password, s.private,
           a.notify, a.orcpt, t.ret, t.envid, t.require_tls, t.route_as IS NOT NULL
    FROM addressed a
    CROSS JOIN LATERAL (
        SELECT * FROM relay.outbound_contents WHERE id = a.content_id OFFSET 0
    ) t
    LEFT JOIN LATERAL (
        SELECT * FROM relay.senders
        WHERE owner = a.owner AND address = lower(COALESCE(t.route_as, t.sender))
        OFFSET 0
    ) s ON true;
    -- No ORDER BY: the window has ordered the narrow rows, and nested loops keep the order.
END
$$;
