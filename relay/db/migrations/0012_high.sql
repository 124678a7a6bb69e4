-- High mail that is queued in SQL says so when it is announced, as what the relay queues does.

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
    VALUES (message, relay.outbound_lane(nil, host), COALESCE(send_at, at), rank, not_after);
    -- Equal payloads of a transaction are one notification.  That of high mail says so: nothing
    -- lower is begun while it is claimed.
    PERFORM pg_notify('relay_outbound', CASE WHEN rank = 0 AND send_at IS NULL THEN 'high' ELSE '' END);
    RETURN message;
END
$$;
