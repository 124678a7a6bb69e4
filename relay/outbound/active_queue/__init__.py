"""The active queue: what this node has claimed, and in which order that is delivered.

`custody.py` answers for each message until it is settled, given back or dropped; `dispatch.py` says
which is next and over how many connections, `right_of_way.py` lets high mail go first, and
`demand.py` tells the claimer how much more there is room for.  In memory alone: what is lost with
the process is due again when its lease runs out.

Entered by `custody.py`, `dispatch.py` and `demand.py`; `jobs.py` is the message on its way.
"""
