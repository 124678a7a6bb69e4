"""The map of a world: its hosts, ports and domains, and what all of its relays have in common."""

from __future__ import annotations

SMTP, SUBMISSION, HTTP, PUSH, RECEIVE = 25, 587, 80, 7701, 7700
"""Ports of a relay."""
UPSTREAM = 2600
"""The port, on every relay's machine, of the server in front of it."""
LOOPBACK = "127.0.0.1"
"""Its address."""
RESOLVER = "127.0.0.53"
"""The address of the server that is asked about names, which validates: on every relay's machine,
or nobody would believe what it says of signatures."""
DATABASE = "db"
"""The database's name in the network."""
DNS = "dns"
"""The host of the server that is asked about names."""
SERVERS = ("upstream", "mx1", "mx2", "mx3")
"""Hosts that the relay hands mail to: the server in front, or the exchangers of domains."""
HOOKS = "hooks.example"
"""The host of whoever is told of mail."""
DOMAIN = "relay.example"
"""The relay's own domain."""
NOBODY = "nobody-"
"""How addresses begin that nobody has: no mailbox here, and other servers refuse them for good."""
RETURNS = "returns.example"
"""The domain of return paths, where there are any."""
SUBMITS_FROM = "sender.example"
"""The domain of those who submit mail, to whom reports of it go."""
ADMIN_TOKEN = "ra_" + "simulated" * 4
LEASE = 60
"""Seconds for which a node has what it has claimed to be delivered."""
