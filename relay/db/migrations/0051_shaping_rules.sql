-- Which rule suspended or slowed a receiver is known on all nodes, and after a restart.
--
-- Promises
--   * What was learned before stands, and says of no rule.
--   * A relay of before goes on beside this one: what it learns says of no rule.
-- Needs nothing but ownership of the database, no extension, PostgreSQL 15 or newer.

ALTER TABLE relay.outbound_shaping ADD COLUMN rule text NOT NULL DEFAULT '';
COMMENT ON COLUMN relay.outbound_shaping.rule IS
    'The traffic rule that the reply met last, as PROVIDER:LINE; empty: it was learned before this '
    'was kept.';
