"""What the database notifies and what the relay listens to are the same channels."""

import re
from pathlib import Path

from relay.db import channels, migrate

NOTIFIES = re.compile(r"pg_notify\(\s*'([a-z_]+)'")


def test_whatever_the_database_notifies_is_listened_to():
    """Every channel that a migration names is known, and only one channel comes from elsewhere."""
    files = Path(migrate.__file__).parent.glob("migrations/*.sql")
    named = {name for file in files for name in NOTIFIES.findall(file.read_text())}
    assert named == set(channels.ALL) - {channels.SUMMARIES}
    assert len(set(channels.ALL)) == len(channels.ALL)
