-- Instants that every client can read, and deadlines that hold for held mail too.
--
-- Promises
--   * No message has an instant beyond the year 9999, which clients (Python's datetime among them)
--     cannot hold: one row of a stranger's would stop whoever reads it together with others.
--   * Past its deadline a message is cancelled while it is held, too, and so is a held letter whose
--     token was used or deleted: nobody could let it go any more.

-- NOT VALID: what is there already stays, and is read with a bound.
ALTER TABLE relay.outbound_letters
    ADD CONSTRAINT outbound_letters_not_after_is_out_of_range
        CHECK (not_after >= '1970-01-01Z' AND not_after < '9999-01-01Z') NOT VALID;
ALTER TABLE relay.outbound_due
    ADD CONSTRAINT outbound_due_not_after_is_out_of_range
        CHECK (not_after >= '1970-01-01Z' AND not_after < '9999-01-01Z') NOT VALID,
    ADD CONSTRAINT outbound_due_send_at_is_out_of_range
        CHECK (run_at >= '1970-01-01Z' AND run_at < '9999-01-01Z' OR run_at = 'infinity') NOT VALID;

CREATE OR REPLACE FUNCTION relay.outbound_expire(p_limit integer) RETURNS SETOF uuid
LANGUAGE sql
SET enable_seqscan = off
AS $$
    WITH gone AS (
        DELETE FROM relay.outbound_due d
        WHERE d.id = ANY (ARRAY(
            SELECT p.id
            FROM relay.outbound_due p
            WHERE p.not_after <= clock_timestamp()
              AND p.node IS NULL
            ORDER BY p.not_after
            LIMIT p_limit
            FOR UPDATE SKIP LOCKED
        ))
        RETURNING d.id, d.claimed_at, d.token, d.attempt
    )
    INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, error)
    SELECT g.id, g.claimed_at, g.token + 1, g.attempt, 'cancelled', 'expired'
    FROM gone g
    RETURNING id
$$;

CREATE OR REPLACE FUNCTION relay.expire_letter(p_token bigint) RETURNS void
LANGUAGE sql
SET enable_seqscan = off
AS $$
    WITH gone AS (
        DELETE FROM relay.outbound_due d
        WHERE d.id = ANY (ARRAY(
            SELECT p.id
            FROM relay.outbound_due p
            WHERE p.id = ANY (ARRAY(SELECT l.id FROM relay.outbound_letters l
                                    WHERE l.token = p_token))
              AND p.node IS NULL
            FOR UPDATE SKIP LOCKED  -- nobody who uses a token waits for a claim
        ))
        RETURNING d.id, d.claimed_at, d.token, d.attempt
    )
    INSERT INTO relay.outbound_log (id, claimed_at, token, attempt, status, error)
    SELECT g.id, g.claimed_at, g.token + 1, g.attempt, 'cancelled', 'expired'
    FROM gone g
$$;

CREATE OR REPLACE FUNCTION relay.trg_after_token_expiry_change() RETURNS trigger
LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
BEGIN
    UPDATE relay.token_queue q
    SET expires_at = NEW.expires_at
    WHERE (q.account, q.token) IN (
        SELECT p.account, p.token
        FROM relay.token_queue p
        WHERE p.account = NEW.account
          AND p.token = NEW.id
        FOR NO KEY UPDATE SKIP LOCKED
    );
    IF FOUND THEN
        PERFORM pg_notify('token_insert', '');
    END IF;
    -- And the letter's, wherever it is.
    UPDATE relay.outbound_due d
    SET not_after = to_timestamp(NEW.expires_at),
        run_at = CASE WHEN d.node IS NULL AND isfinite(d.run_at)
                      THEN LEAST(d.run_at, to_timestamp(NEW.expires_at))
                      ELSE d.run_at END
    WHERE d.id = ANY (ARRAY(
        SELECT p.id
        FROM relay.outbound_due p
        WHERE p.id = ANY (ARRAY(SELECT l.id FROM relay.outbound_letters l WHERE l.token = NEW.id))
        FOR NO KEY UPDATE SKIP LOCKED
    ));
    RETURN NULL;
END
$$;
