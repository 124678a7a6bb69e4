"""PostgreSQL on Trio: connections, the pool, LISTEN, leases, migrations, the embedded server."""
