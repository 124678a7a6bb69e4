-- Parsing: whose message waits, and how large it is.
--
-- The summariser shares its time among mailboxes, so it has to know before it takes a message
-- whose it is; from relay.messages that would be a look-up for each that waits.

ALTER TABLE relay.unsummarised
    ADD COLUMN mailbox_id uuid,
    ADD COLUMN size integer;

UPDATE relay.unsummarised u
SET mailbox_id = m.mailbox_id,
    size = m.size
FROM relay.messages m
WHERE m.id = u.message_id;

-- What waits for no message any more.
DELETE FROM relay.unsummarised WHERE mailbox_id IS NULL;

ALTER TABLE relay.unsummarised
    ALTER COLUMN mailbox_id SET NOT NULL,
    ALTER COLUMN size SET NOT NULL;

CREATE OR REPLACE FUNCTION relay.messages_queue() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO relay.unsummarised (message_id, mailbox_id, size)
    VALUES (NEW.id, NEW.mailbox_id, NEW.size)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
