"""Routing: by which server mail leaves, as whom, and from which address.

`senders.py` has the upstream of each sender, its password sealed; `sources.py` the names and
addresses that mail leaves by, and how much a day while they are new; `routes.py` makes routes of
both, and keeps what is open to them.  With `mx:` it is `relay.outbound.mx` that finds the servers.

Entered by all three.
"""
