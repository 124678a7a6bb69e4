"""Accounts and tokens in SQL: the columns and triggers of docs/sql.md, on each PostgreSQL."""

from collections import Counter
from contextlib import aclosing

import psycopg
import pytest
import trio

from relay.db.connection import connect
from relay.db.pool import Pool
from tests.lifecycle.people import account, insert, set_status, tokens

WAITING = "SELECT count(*) FROM relay.token_queue WHERE ready"


async def test_columns_types_and_enums_are_as_other_programs_expect(any_pool: Pool):
    """Names, types and order, as a client of other programs expects them."""
    columns = await any_pool.fetch(
        """
        SELECT table_name, column_name,
               CASE WHEN data_type = 'USER-DEFINED' THEN udt_name ELSE data_type END
                   || COALESCE('(' || character_maximum_length || ')', '')
        FROM information_schema.columns
        WHERE table_schema = 'relay' AND table_name IN ('accounts', 'tokens', 'jobs')
        ORDER BY table_name, ordinal_position
        """
    )
    epoch = "integer"
    assert [row[1:] for row in columns if row[0] == "accounts"][:9] == [
        ("id", "bigint"),
        ("email", "character varying(254)"),
        ("status", "account_status"),
        ("login", "character varying(254)"),
        ("created_at", epoch),
        ("status_changed_at", epoch),
        ("activated_at", epoch),
        ("suspended_at", epoch),
        ("unsuspended_at", epoch),
    ]
    assert [row[1:] for row in columns if row[0] == "tokens"] == [
        ("id", "bigint"),
        ("action", "token_action"),
        ("secret", "bytea"),
        ("code", "character varying(5)"),
        ("account", "bigint"),
        ("expires_at", epoch),
        ("consumed_at", epoch),
        ("created_at", epoch),
    ]
    assert [row[1:] for row in columns if row[0] == "jobs"] == [
        ("job_type", "job_type"),
        ("last_seq", "bigint"),
    ]
    enums = await any_pool.fetch(
        """
        SELECT t.typname, array_agg(e.enumlabel::text ORDER BY e.enumsortorder)
        FROM pg_type t JOIN pg_enum e ON e.enumtypid = t.oid
        WHERE t.typname IN ('account_status', 'token_action', 'job_type')
        GROUP BY t.typname
        """
    )
    assert dict(enums) == {
        "account_status": ["provisioned", "active", "suspended"],
        "token_action": ["activation", "password_recovery"],
        "job_type": ["mailroom"],
    }


async def test_a_provisioned_account_comes_with_an_activation_token(any_pool: Pool):
    """In the same transaction; 15 minutes, 32 bytes, five digits."""
    (number,) = await insert(any_pool)
    made = await account(any_pool, number)
    assert made["status"] == "provisioned"
    assert [made[name] for name in ("status_changed_at", "activated_at", "suspended_at")] == (
        [None] * 3
    )
    (token,) = await tokens(any_pool, number)
    assert token["action"] == "activation"
    assert token["consumed_at"] is None
    assert token["expires_at"] == token["created_at"] + 900 == made["created_at"] + 900
    assert len(bytes.fromhex(token["secret"].removeprefix("\\x"))) == 32
    assert len(token["code"]) == 5


async def test_rolled_back_there_is_neither(pool: Pool):
    """One transaction."""
    with pytest.raises(ZeroDivisionError):
        async with pool.transaction() as connection:
            await connection.execute(
                "INSERT INTO relay.accounts (email, login) VALUES ('a@example.org', 'a')"
            )
            raise ZeroDivisionError
    for table in ("accounts", "tokens", "token_queue"):
        assert await pool.fetch_value(f"SELECT count(*) FROM relay.{table}") == 0


async def test_an_account_that_was_there_already_makes_no_token(any_pool: Pool):
    """ON CONFLICT leaves no token behind without its account."""
    await insert(any_pool, prefix="same")
    for action in ("DO NOTHING", "(email) DO UPDATE SET login = 'renamed'"):
        await any_pool.execute(
            "INSERT INTO relay.accounts (email, login) VALUES ('same1@example.org', 'same1')"
            f" ON CONFLICT {action}"
        )
    assert await any_pool.fetch_value("SELECT count(*) FROM relay.tokens") == 1
    assert await any_pool.fetch_value("SELECT login FROM relay.accounts") == "renamed"


async def test_the_status_keeps_its_instants(any_pool: Pool):
    """provisioned, active, suspended, active: each change stamps its time and clears the other."""
    (number,) = await insert(any_pool)
    await any_pool.execute(
        "UPDATE relay.tokens SET consumed_at = extract(epoch FROM now()) WHERE account = %s",
        (number,),
    )
    active = await account(any_pool, number)
    assert active["status"] == "active"
    assert active["activated_at"] == active["status_changed_at"] is not None
    await set_status(any_pool, number, "suspended")
    suspended = await account(any_pool, number)
    assert suspended["suspended_at"] is not None
    assert suspended["unsuspended_at"] is None
    await set_status(any_pool, number, "active")
    again = await account(any_pool, number)
    assert (again["status"], again["suspended_at"]) == ("active", None)
    assert again["unsuspended_at"] == again["status_changed_at"] is not None
    assert again["activated_at"] == active["activated_at"]


async def test_unsuspended_an_account_that_was_never_active_is_provisioned_again(pool: Pool):
    """Whichever of the two it was to become."""
    for target in ("active", "provisioned"):
        (number,) = await insert(pool)
        await set_status(pool, number, "suspended")
        await set_status(pool, number, target)
        now = await account(pool, number)
        assert (now["status"], now["activated_at"], now["suspended_at"]) == (
            "provisioned", None, None,
        )  # fmt: skip
        assert now["unsuspended_at"] is not None


async def test_an_account_inserted_as_active_is_active_again_after_a_suspension(pool: Pool):
    """An import of existing accounts: no token, and no fall back to provisioned."""
    (number,) = await insert(pool, status="active")
    assert await tokens(pool, number) == []
    await set_status(pool, number, "suspended")
    await set_status(pool, number, "active")
    assert (await account(pool, number))["status"] == "active"


async def test_a_recovery_that_is_consumed_changes_no_account(pool: Pool):
    """Only an activation activates, and only what is provisioned."""
    (number,) = await insert(pool)
    await pool.execute(
        "INSERT INTO relay.tokens (account, action) VALUES (%s, 'password_recovery')", (number,)
    )
    await pool.execute("UPDATE relay.tokens SET consumed_at = 1 WHERE action = 'password_recovery'")
    assert (await account(pool, number))["status"] == "provisioned"
    await set_status(pool, number, "suspended")
    await pool.execute("UPDATE relay.tokens SET consumed_at = 1 WHERE action = 'activation'")
    assert (await account(pool, number))["status"] == "suspended"


async def test_a_token_may_come_before_its_account(any_pool: Pool):
    """The foreign key is deferred; at the commit the account must be there."""
    async with any_pool.transaction() as connection:
        await connection.execute(
            "INSERT INTO relay.tokens (account, action) VALUES (777, 'activation')"
        )
        await connection.execute(
            "INSERT INTO relay.accounts (id, email, login) VALUES (777, 'x@example.org', 'x')"
        )
    assert len(await tokens(any_pool, 777)) == 2
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        await any_pool.execute(
            "INSERT INTO relay.tokens (account, action) VALUES (778, 'activation')"
        )


async def test_a_deleted_account_takes_its_tokens_along(pool: Pool):
    """And what was to be mailed."""
    await insert(pool, 3)
    await pool.execute("DELETE FROM relay.accounts")
    for table in ("tokens", "token_queue"):
        assert await pool.fetch_value(f"SELECT count(*) FROM relay.{table}") == 0


UNUSABLE = [
    ("login", "ada,eve"),
    ("login", "ada\neve"),
    ("login", "ada\reve"),
    ("login", "ada\x1beve"),
    ("login", ""),
    ("login", "x" * 255),
    ("email", "a,b@example.org"),
    ("email", "a\n@example.org"),
    ("email", "a@example.org\r\nBcc: b@example.org"),
    ("email", "nobody"),
    ("email", "a b@example.org"),
    ("email", "a@b@example.org"),
    ("email", "<a@example.org>"),
    ("email", "a@"),
    ("email", "@example.org"),
    ("email", "a..b@example.org"),
    ("email", ""),
    ("email", "é" * 127 + "@example.org"),
]


async def test_what_would_break_a_line_or_cannot_be_mailed_is_refused(any_pool: Pool):
    """At the INSERT and at an UPDATE, by a constraint that says what is wrong."""
    (number,) = await insert(any_pool)
    for column, value in UNUSABLE:
        values = {"email": "ok@example.org", "login": "ok"} | {column: value}
        with pytest.raises((psycopg.DataError, psycopg.IntegrityError)) as refused:
            await any_pool.execute(
                "INSERT INTO relay.accounts (email, login) VALUES (%(email)s, %(login)s)", values
            )
        if isinstance(refused.value, psycopg.errors.CheckViolation):
            assert (refused.value.diag.constraint_name or "").startswith(f"accounts_{column}_is_")
        with pytest.raises((psycopg.DataError, psycopg.IntegrityError)):
            await any_pool.execute(
                f"UPDATE relay.accounts SET {column} = %s WHERE id = %s", (value, number)
            )


async def test_codes_are_five_digits_evenly_spread(pool: Pool):
    """Never `#####`, leading zeros kept, each digit in each place about as often as any other."""
    rows = await pool.fetch("SELECT relay.random_code() FROM generate_series(1, 20000)")
    codes = [row[0] for row in rows]
    assert all(len(code) == 5 and code.isascii() and code.isdigit() for code in codes)
    for place in range(5):
        counts = Counter(code[place] for code in codes)
        # 2,000 each, six standard deviations of the binomial either way.
        assert all(1745 < counts[digit] < 2255 for digit in "0123456789"), counts


async def test_secrets_and_codes_that_are_malformed_are_refused(pool: Pool):
    """Whoever gives their own."""
    (number,) = await insert(pool)
    for column, value in (("secret", b"short"), ("code", "12"), ("code", "1234a"), ("code", None)):
        with pytest.raises(psycopg.IntegrityError):
            await pool.execute(
                f"INSERT INTO relay.tokens (account, action, {column})"
                " VALUES (%s, 'activation', %s)",
                (number, value),
            )


async def test_any_number_of_accounts_is_announced_once(any_pool: Pool, any_database_url: str):
    """Fifty rows of one statement, and fifty statements of one transaction: one wake-up each."""
    async with await connect(any_database_url) as listening:
        await listening.execute("LISTEN token_insert")
        await insert(any_pool, 50)
        async with any_pool.transaction() as connection:
            for each in range(50):
                await connection.execute(
                    "INSERT INTO relay.accounts (email, login) VALUES (%s, %s)",
                    (f"single{each}@example.org", f"single{each}"),
                )
        await insert(any_pool, status="active")  # nothing to mail, nothing to say
        await any_pool.execute("NOTIFY token_insert, 'end'")
        heard = []
        with trio.fail_after(10):
            async with aclosing(listening.notifies()) as notices:
                async for notice in notices:
                    heard.append((notice.channel, notice.payload))
                    if notice.payload:
                        break
        assert heard == [("token_insert", "")] * 2 + [("token_insert", "end")]
    assert await any_pool.fetch_value(WAITING) == 100


async def test_any_search_path_and_a_role_that_may_only_insert_will_do(
    any_pool: Pool, any_database_url: str
):
    """A product's role needs INSERT on accounts, and reads no secret."""
    role = f"shop_{(await any_pool.fetch_value('SELECT current_database()'))}"
    async with await connect(any_database_url) as connection:
        await connection.execute(f"CREATE ROLE {role}")
        try:
            await connection.execute(f"GRANT USAGE ON SCHEMA relay TO {role}")
            await connection.execute(f"GRANT INSERT (email, login) ON relay.accounts TO {role}")
            await connection.execute("CREATE SCHEMA elsewhere CREATE TABLE tokens (id integer)")
            await connection.execute(f"SET SESSION AUTHORIZATION {role}")
            paths = ("''", "elsewhere", "elsewhere, pg_catalog", "public")
            for number, path in enumerate(paths):
                await connection.execute(f"SET search_path = {path}")
                await connection.execute(
                    "INSERT INTO relay.accounts (email, login) VALUES (%s, %s)",
                    (f"{number}@example.org", str(number)),
                )
            for forbidden in (
                "SELECT secret FROM relay.tokens",
                "UPDATE relay.accounts SET status = 'active'",
                # As the owner's function, on a table of its own, it would activate any account.
                "CREATE TEMPORARY TABLE mine (account bigint, action relay.token_action);"
                " CREATE TRIGGER now AFTER UPDATE ON mine"
                " FOR EACH ROW EXECUTE FUNCTION relay.trg_after_token_consumed()",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await connection.execute(forbidden)
        finally:
            await connection.execute("RESET SESSION AUTHORIZATION")
            await connection.execute(f"DROP OWNED BY {role}")
            await connection.execute(f"DROP ROLE {role}")
    assert await any_pool.fetch_value(WAITING) == 4


async def test_a_role_that_may_only_insert_makes_no_active_account_and_no_odd_token(
    any_pool: Pool, any_database_url: str
):
    """What it could not change afterwards it cannot set: status, owner, what tokens count by."""
    role = f"clerk_{(await any_pool.fetch_value('SELECT current_database()'))}"
    ways = """
        accounts (email, login, status) VALUES ('a@example.org', 'a', 'active')
        accounts (email, login, status) VALUES ('a@example.org', 'a', 'suspended')
        accounts (email, login, activated_at) VALUES ('a@example.org', 'a', 1)
        accounts (email, login, suspended_at) VALUES ('a@example.org', 'a', 1)
        accounts (email, login, status_changed_at) VALUES ('a@example.org', 'a', 1)
        accounts (email, login, owner) VALUES ('a@example.org', 'a', gen_random_uuid())
        tokens (account, action, consumed_at) VALUES (1, 'activation', 1)
        tokens (account, action, expires_at) VALUES (1, 'activation', 2147483647)
        tokens (account, action, created_at) VALUES (1, 'activation', 1)
    """.strip().splitlines()
    (number,) = await insert(any_pool)
    async with await connect(any_database_url) as connection:
        await connection.execute(f"CREATE ROLE {role}")
        try:
            await connection.execute(f"GRANT USAGE ON SCHEMA relay TO {role}")
            await connection.execute(f"GRANT INSERT ON relay.accounts, relay.tokens TO {role}")
            await connection.execute(f"SET SESSION AUTHORIZATION {role}")
            for way in ways:
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not insert"):
                    await connection.execute(f"INSERT INTO relay.{way}")
            await connection.execute(
                "INSERT INTO relay.accounts (email, login) VALUES ('b@example.org', 'b')"
            )
            await connection.execute(
                f"INSERT INTO relay.tokens (account, action) VALUES ({number}, 'activation')"
            )
            await connection.execute("RESET SESSION AUTHORIZATION")
            # Who may change it may set it; so may the owner, whose role this is now.
            await connection.execute(f"GRANT UPDATE (status) ON relay.accounts TO {role}")
            for who in (role, "DEFAULT"):
                await connection.execute(f"SET SESSION AUTHORIZATION {who}")
                await connection.execute(
                    "INSERT INTO relay.accounts (email, login, status) VALUES (%s, %s, 'active')",
                    (f"{who}@example.org", who),
                )
        finally:
            await connection.execute("RESET SESSION AUTHORIZATION")
            await connection.execute(f"DROP OWNED BY {role}")
            await connection.execute(f"DROP ROLE {role}")
    assert await any_pool.fetch_value("SELECT count(*) FROM relay.accounts") == 4


async def test_recover_account_makes_a_token_for_active_accounts_only(pool: Pool):
    """It names the status that is in the way, and stops at five within 15 minutes."""
    (number,) = await insert(pool)
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="is provisioned"):
        await pool.execute("SELECT relay.recover_account(%s)", (number,))
    assert await pool.fetch_value("SELECT relay.resend_activation(%s)", (number,)) > 0
    await pool.execute("UPDATE relay.tokens SET consumed_at = 1")
    for _ in range(5):
        made = await pool.fetch_value("SELECT relay.recover_account(%s)", (number,))
        assert (await tokens(pool, number))[-1]["id"] == made
    with pytest.raises(psycopg.errors.ProgramLimitExceeded):
        await pool.execute("SELECT relay.recover_account(%s)", (number,))
    with pytest.raises(psycopg.errors.NoDataFound):
        await pool.execute("SELECT relay.recover_account(999999)")
