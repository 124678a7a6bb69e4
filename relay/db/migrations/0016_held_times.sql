-- A message that is held before its time keeps its time.
--
-- A hold sets run_at to infinity; what a message that was never tried was waiting for is put beside
-- it, so that queueing it again (relay/outbound/desk.py) does not send it early.

ALTER TABLE relay.outbound_due ADD COLUMN send_at timestamptz;
COMMENT ON COLUMN relay.outbound_due.send_at IS
    'Of a message that was held before its first attempt: the run_at that it had.  NULL for all '
    'others.';
