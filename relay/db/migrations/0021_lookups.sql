-- Who takes mail, looked up by index whatever the statistics say.
--
-- Promises
--   * Looking up addresses takes as long as there are addresses.  Written into a statement that is
--     planned once, the same question is planned by what the tables held then: relay.usage_changes
--     is empty whenever all is folded, and to read all of it for each address once it has grown is
--     a thousand times the work (until the next vacuum).
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE FUNCTION relay.find_mailboxes(addresses text[])
RETURNS TABLE (address text, is_full boolean)
LANGUAGE plpgsql ROWS 10
SET enable_seqscan = off
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT b.address,
           CASE WHEN b.is_active AND b.expires_at > clock_timestamp() THEN
               (b.owner_id IS DISTINCT FROM '00000000-0000-0000-0000-000000000000'
                OR b.captured_at IS NOT NULL) AND (
                   SELECT coalesce(sum(c.messages), 0) + coalesce(u.messages, 0) >= p.max_messages
                       OR coalesce(sum(c.bytes), 0) + coalesce(u.bytes, 0) >= p.max_bytes
                   FROM relay.usage_changes c
                   WHERE c.mailbox_id = b.id
               ) IS TRUE
           END
    FROM unnest((SELECT addresses)) AS asked (address)  -- of a length nobody can plan for
    CROSS JOIN LATERAL (
        SELECT * FROM relay.mailboxes m WHERE m.address = asked.address LIMIT 1
    ) b
    LEFT JOIN relay.plans p ON p.name = b.plan
    LEFT JOIN relay.mailbox_usage u ON u.mailbox_id = b.id;
END
$$;
COMMENT ON FUNCTION relay.find_mailboxes(text[]) IS
    'Those of the addresses (canonical) that are mailboxes: is_full says whether one holds what its '
    'plan allows, never of the administrator''s but for what capture made; NULL: it takes no mail any more.';
