-- Policies of MTA-STS (RFC 8461) that were fetched: what domains ask of those who bring them mail.
--
-- Promises
--   * A policy is here until it expires, whatever becomes of the relay that fetched it: who could
--     make a domain's record or its server vanish for a while gains nothing by it.
--   * A domain has one at most, the last that was fetched.
--   * A relay of before goes on beside this one: it knows of no policies.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

CREATE TABLE relay.mta_sts_policies (
    domain     text COLLATE "C" PRIMARY KEY CHECK (domain = lower(domain)),
    policy_id  text COLLATE "C" NOT NULL,
    mode       text NOT NULL CHECK (mode IN ('enforce', 'testing', 'none')),
    hosts      text[] NOT NULL,
    max_age    integer NOT NULL CHECK (max_age BETWEEN 0 AND 31557600),
    fetched_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz NOT NULL
);
COMMENT ON TABLE relay.mta_sts_policies IS
    'Policies of MTA-STS (RFC 8461) of domains that mail is delivered to directly.  A row that is '
    'removed is fetched again when mail goes to its domain.';
COMMENT ON COLUMN relay.mta_sts_policies.policy_id IS
    'The id in the TXT record of the domain when the policy was fetched; another: it is fetched anew.';
COMMENT ON COLUMN relay.mta_sts_policies.hosts IS
    'The mail exchangers that are allowed; *. at the front stands for one label.';
CREATE INDEX mta_sts_policies_expiry ON relay.mta_sts_policies (expires_at);
