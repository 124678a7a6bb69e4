-- What becomes of mailboxes is announced with whose they are, as changes of messages are since 0050.
--
-- Promises
--   * Who follows all of an owner's mail hears that a mailbox ended before it was due, which takes
--     its mail along, and is woken by that owner's mailboxes alone.
--   * Owners are named where the payload has room for all of them, be the mailboxes so many that none
--     is named; where no owner is, whoever follows an owner's mail looks.
--   * A relay of before goes on beside this one: what it is told besides names no mailbox.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

-- As in 0001, and the owners.
CREATE OR REPLACE FUNCTION relay.mailboxes_announce_update() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    earliest timestamptz;
    named    bigint;
    payload  text;
    owners   text;  -- ',=OWNER' of each; ',=' of mailboxes without one
BEGIN
    SELECT min(expires_at) INTO earliest FROM new_rows WHERE is_active;
    IF earliest IS NOT NULL THEN
        PERFORM pg_notify('relay_expiry', extract(epoch FROM earliest)::text);
    END IF;
    -- The ticker's flips in due time concern nobody (waiters know the deadline) and come in
    -- thousands: leave before the join.  Everything else is looked at row by row.
    IF earliest IS NULL
       AND NOT EXISTS (SELECT FROM old_rows WHERE is_active AND expires_at > now()) THEN
        RETURN NULL;
    END IF;
    SELECT count(*), string_agg(id::text, ','),
           string_agg(DISTINCT ',=' || COALESCE(owner_id::text, ''), '')
    INTO named, payload, owners
    FROM (
        SELECT n.id, n.owner_id
        FROM new_rows n
        JOIN old_rows o ON o.id = n.id
        WHERE (o.is_active, o.expires_at) IS DISTINCT FROM (n.is_active, n.expires_at)
        LIMIT 201
    ) few;
    IF named > 200 THEN
        payload := '*';
        SELECT string_agg(owner, '')
        INTO owners
        FROM (
            SELECT DISTINCT ',=' || COALESCE(n.owner_id::text, '') AS owner
            FROM new_rows n
            JOIN old_rows o ON o.id = n.id
            WHERE (o.is_active, o.expires_at) IS DISTINCT FROM (n.is_active, n.expires_at)
            LIMIT 220  -- more than a payload has room for
        ) many;
    END IF;
    IF named > 0 THEN
        IF length(payload || owners) < 8000 THEN
            payload := payload || owners;
        END IF;
        PERFORM pg_notify('relay_mailboxes', payload);
    END IF;
    RETURN NULL;
END
$$;

CREATE OR REPLACE FUNCTION relay.mailboxes_announce_delete() RETURNS trigger
LANGUAGE plpgsql
AS $$
DECLARE
    named   bigint;
    payload text;
    owners  text;
BEGIN
    -- Nobody waits on a closed mailbox, which is what the reaper deletes.
    SELECT count(*), string_agg(id::text, ','),
           string_agg(DISTINCT ',=' || COALESCE(owner_id::text, ''), '')
    INTO named, payload, owners
    FROM (SELECT id, owner_id FROM old_rows WHERE is_active AND expires_at > now() LIMIT 201) few;
    IF named > 200 THEN
        payload := '*';
        SELECT string_agg(owner, '')
        INTO owners
        FROM (
            SELECT DISTINCT ',=' || COALESCE(owner_id::text, '') AS owner
            FROM old_rows
            WHERE is_active AND expires_at > now()
            LIMIT 220  -- more than a payload has room for
        ) many;
    END IF;
    IF named > 0 THEN
        IF length(payload || owners) < 8000 THEN
            payload := payload || owners;
        END IF;
        PERFORM pg_notify('relay_mailboxes', payload);
    END IF;
    RETURN NULL;
END
$$;
