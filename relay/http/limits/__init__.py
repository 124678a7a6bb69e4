"""Limits: how much one caller may have of what all share.

`rate_limits.py` bounds how often one may call, `fair_limiter.py` how much one owner may hold at
once, and `heavy_calls.py` gives turns for what is much work.  No owner takes all, and some is kept
for the administrator.

Entered by all three.
"""
