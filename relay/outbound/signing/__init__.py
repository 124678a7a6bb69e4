"""Signing: DKIM (RFC 6376; Ed25519: RFC 8463), beside the loop that delivers.

`dkim_keys.py` keeps the keys; `signer.py` knows which of them signs what, `dkim.py` makes the
fields, and `ahead.py` has mail composed and signed before a worker takes it: in threads, or in the
processes of `processes.py`, which run `worker.py`.  Private keys are stored sealed.

Entered by `dkim_keys.py` (to make, rotate and show keys), `signer.py` and `ahead.py` (to sign).
"""
