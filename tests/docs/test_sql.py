"""Every statement of docs/sql.md runs as it stands, by the role that it is for."""

from __future__ import annotations

import re

import psycopg
import pytest
from psycopg import sql

from tests.docs.pages import DOCS, ROOT, blocks

PAGE = DOCS / "sql.md"
ROLES = ("shop", "signup")


def test_every_statement_runs(any_database_url: str) -> None:
    """In the order of the page, in one transaction, and each finds what it is about."""
    with psycopg.connect(any_database_url) as connection:
        for block in blocks(PAGE.read_text()):
            if block.language == "sql":
                connection.execute(block.text.encode())
        connection.rollback()


@pytest.mark.parametrize("role", ROLES)
def test_the_rights_that_the_page_grants_are_enough(any_database_url: str, role: str) -> None:
    """Whoever has only those sends, with a key too, or makes accounts; and reads no secret."""
    grants = [b.text for b in blocks(PAGE.read_text()) if f"ROLE {role}" in b.text]
    (grant,) = grants
    does = {
        "shop": [
            "SELECT relay.send('a@example.org', 'b@example.org', 'x', 'y')",
            "SELECT relay.send('a@example.org', 'b@example.org', 'x', 'y', idempotency_key => 'k')",
            "SELECT relay.send('a@example.org', 'b@example.org', 'x', 'y', idempotency_key => 'k')",
        ],
        "signup": ["INSERT INTO relay.accounts (email, login) VALUES ('ada@example.org', 'ada')"],
    }
    with psycopg.connect(any_database_url) as connection:
        connection.execute(grant.encode())
        connection.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
        for statement in does[role]:
            connection.execute(statement.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT secret FROM relay.tokens")
        connection.rollback()


def test_the_columns_and_channels_are_those_of_the_schema(database_url: str) -> None:
    """Tables of columns are complete, and so is the table of notifications."""
    text = PAGE.read_text()
    with psycopg.connect(database_url) as connection:
        for table in ("accounts", "tokens"):
            part = text.partition(f"\n| `{table}` |")[2].partition("\n\n")[0]
            named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|([^|]*)\|", part, re.M)))
            found = connection.execute(
                "SELECT column_name FROM information_schema.columns"
                " WHERE table_schema = 'relay' AND table_name = %s",
                (table,),
            ).fetchall()
            assert sorted(named) == sorted(name for (name,) in found), table
    said = set(re.findall(r"^\| `(relay_\w+|token_insert)` \|", text, re.M))
    sources = "".join(file.read_text() for file in ROOT.glob("relay/db/migrations/*.sql"))
    triggered = set(re.findall(r"pg_notify\('(\w+)'", sources))
    assert triggered <= said
    assert said - triggered == {"relay_summaries"}  # the summariser's own
