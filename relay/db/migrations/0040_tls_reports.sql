-- What became of TLS with the mail exchangers of domains, a day at a time, until it is reported
-- to them (RFC 8460).
--
-- Promises
--   * A row is one result of one policy of one domain on one day (UTC): how many sessions ended so.
--   * What a day's report says is removed with the commit that queues it.
--   * A relay of before goes on beside this one: it counts nothing.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.tls_results (
    day     date NOT NULL,
    domain  text COLLATE "C" NOT NULL,
    key     bytea NOT NULL,
    policy  jsonb NOT NULL,
    fault   text NOT NULL,
    host    text NOT NULL,
    address text NOT NULL,
    count   bigint NOT NULL CHECK (count > 0),
    PRIMARY KEY (day, domain, key)
);
COMMENT ON TABLE relay.tls_results IS
    'Sessions with the mail exchangers of domains that mail was delivered to directly, by how TLS '
    'ended, until they are reported (RELAY_OUTBOUND__TLS_REPORTS).  What is removed is not reported.';
COMMENT ON COLUMN relay.tls_results.key IS
    'The digest of policy, fault, host and address.';
COMMENT ON COLUMN relay.tls_results.policy IS
    'What the domain had published: type, strings and hosts.';
COMMENT ON COLUMN relay.tls_results.fault IS
    'A result type of RFC 8460, 4.3; empty: the session was secured as it should be.';

CREATE TABLE relay.tls_reports (
    day      date NOT NULL,
    domain   text COLLATE "C" NOT NULL,
    id       uuid NOT NULL,
    mailed   boolean NOT NULL DEFAULT false,
    urls     text[],
    attempts smallint NOT NULL DEFAULT 0,
    due_at   timestamptz NOT NULL,
    PRIMARY KEY (day, domain)
);
COMMENT ON TABLE relay.tls_reports IS
    'Days of domains that are over and were not reported to all who want it.';
COMMENT ON COLUMN relay.tls_reports.mailed IS
    'Whether the report was queued for those who get it by mail.';
COMMENT ON COLUMN relay.tls_reports.urls IS
    'Where it is still to be posted to; null: it was not asked yet who wants it.';
CREATE INDEX tls_reports_due ON relay.tls_reports (due_at);
