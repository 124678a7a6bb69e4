-- Keys that end by themselves, send from some addresses only, and say what kind of program they
-- were made for.

ALTER TABLE relay.api_keys
    ADD COLUMN kind relay.owner_type NOT NULL DEFAULT 'api' CHECK (kind <> 'anonymous'),
    ADD COLUMN senders text[] CHECK (cardinality(senders) > 0),
    ADD COLUMN expires_at timestamptz;

COMMENT ON COLUMN relay.api_keys.kind IS 'The owner_type of the mailboxes that the key makes.';
COMMENT ON COLUMN relay.api_keys.senders IS
    'What the key may send from: addresses, @domain, own (its live mailboxes); NULL: anything.';
COMMENT ON COLUMN relay.api_keys.expires_at IS
    'When a key ends that is not renewed; such a key is deleted, not revoked.  NULL: never.';

-- Those that ended, to be deleted.
CREATE INDEX api_keys_expiry ON relay.api_keys (expires_at) WHERE expires_at IS NOT NULL;
