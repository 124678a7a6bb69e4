-- Results of TLS have the address that a failed session came from: the `sending-mta-ip` of reports
-- (RFC 8460, 4.4).
--
-- Promises
--   * A relay of before goes on beside this one: what it counts has none.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.tls_results ADD COLUMN source text NOT NULL DEFAULT '';
COMMENT ON COLUMN relay.tls_results.source IS
    'The address of ours that a session which failed came from; empty: it is not known.';
COMMENT ON COLUMN relay.tls_results.key IS
    'The digest of policy, fault, host, address and source.';
