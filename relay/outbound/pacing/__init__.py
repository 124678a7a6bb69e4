"""Pacing: how long to wait, how much at once, how many a second.

`gates.py` has a circuit breaker and a concurrency window for each route and destination,
`backoff.py` the waits between attempts, `shared_rates.py` the rates that all nodes share and
`meter.py` what one node has leased of them; `held_back.py` says why mail waits.  Knows no queue and
no connection; what receivers ask for is `relay.outbound.shaping`.

Entered by `gates.py`, `backoff.py`, `shared_rates.py`, and `held_back.py` for the reasons.
"""
