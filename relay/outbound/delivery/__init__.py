"""Delivery: a message that was dispatched is rendered, spoken to its server, and learned from.

`workers.py` takes job after job from a line, over a connection that is kept; `render.py` makes the
bytes and the envelope, `large_turns.py` bounds how many large ones are in memory, `loopback.py` has
the writer take what is for this relay, and `gatekeeper.py` tells gates and traffic rules how it
ended.  Each job ends in one outcome, and what was not begun is given back.

Entered by `workers.py` with `gatekeeper.py` (the sender), and by `render.py` (who shows the bytes).
"""
