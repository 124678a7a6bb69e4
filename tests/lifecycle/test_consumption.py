"""Using tokens: once, and refused alike whatever is wrong."""

import secrets
from functools import partial

import trio
from trio.testing import MockClock

from relay.access.owners import ADMINISTRATOR_ID
from relay.db.pool import Pool
from relay.errors import DatabaseUnavailable, RolledBack
from relay.lifecycle.consumption import FREE_GUESSES, GUESS_EVERY, Consumed, Consumption, Guesses
from relay.lifecycle.tokens import Action, sign
from tests.actors.running import blocked
from tests.lifecycle.people import account, insert, set_status, tokens

KEY = bytes(range(32))


def consumption(pool: Pool, *keys: bytes) -> Consumption:
    """A process's view of the tokens."""
    return Consumption(pool, lambda: keys or (KEY,))


async def signed(pool: Pool, number: int, key: bytes = KEY) -> tuple[str, str]:
    """Return the newest token of an account, signed, and its code."""
    token = (await tokens(pool, number))[-1]
    secret = bytes.fromhex(token["secret"].removeprefix("\\x"))
    return sign(key, Action[token["action"].upper()], secret, token["code"]), token["code"]


async def recovery(pool: Pool) -> tuple[int, str, str]:
    """Make an active account with a recovery; return its id, the token and the code."""
    (number,) = await insert(pool, status="active")
    await pool.execute("SELECT relay.recover_account(%s)", (number,))
    return (number, *await signed(pool, number))


async def use(uses: Consumption, given: tuple[str, ...], results: list[Consumed | None]) -> None:
    """Use a token, and add what came of it."""
    results.append(await uses.consume(*given))


def other(code: str) -> str:
    """Return another code."""
    return f"{(int(code) + 1) % 100_000:05}"


async def test_an_activation_is_used_once_and_activates(any_pool: Pool):
    """The answer tells whose it was; the second time there is none."""
    (number,) = await insert(any_pool)
    made = await account(any_pool, number)
    token, _ = await signed(any_pool, number)
    uses = consumption(any_pool)
    assert await uses.consume(token) == Consumed(
        Action.ACTIVATION, number, made["login"], "active", ADMINISTRATOR_ID
    )
    assert (await account(any_pool, number))["status"] == "active"
    for again in (uses, consumption(any_pool)):  # this process, and one that does not remember
        assert await again.consume(token) is None


async def test_twenty_at_once_one_succeeds(any_pool: Pool):
    """In two processes, for either kind."""
    (number,) = await insert(any_pool)
    activation, _ = await signed(any_pool, number)
    known, token, code = await recovery(any_pool)
    for arguments, account_id in (((activation,), number), ((token, code), known)):
        processes = (consumption(any_pool), consumption(any_pool))
        results: list[Consumed | None] = []

        async with trio.open_nursery() as nursery:
            for turn in range(20):
                nursery.start_soon(use, processes[turn % 2], arguments, results)
        (won,) = [result for result in results if result is not None]
        assert won.account == account_id


async def test_what_is_wrong_is_refused_and_consumes_nothing(pool: Pool):
    """Forged, unknown, of another key, without its code or with a wrong one: then the right."""
    number, token, code = await recovery(pool)
    uses = consumption(pool)
    secret = secrets.token_bytes(32)
    for given in (
        (token,),
        (token, other(code)),
        (token, ""),
        (token, code + "\n"),
        (token[:-1] + ("A" if token[-1] != "A" else "E"), code),
        ("", code),
        ("x" * 86, code),
        (sign(KEY, Action.PASSWORD_RECOVERY, secret, code), code),
        (sign(KEY, Action.ACTIVATION, secret, code), code),
        (await signed(pool, number, key=bytes(32))),
    ):
        assert await uses.consume(*given) is None
    assert await uses.consume(token, code, action=Action.ACTIVATION) is None
    used = await uses.consume(token, code, action=Action.PASSWORD_RECOVERY)
    assert used is not None
    assert used.action is Action.PASSWORD_RECOVERY


async def test_expired_means_refused(pool: Pool):
    """To the second, by the database's clock."""
    (number,) = await insert(pool)
    token, _ = await signed(pool, number)
    await pool.execute(
        "UPDATE relay.tokens SET expires_at = floor(extract(epoch FROM clock_timestamp()))"
    )
    assert await consumption(pool).consume(token) is None
    assert (await account(pool, number))["status"] == "provisioned"


async def test_a_suspended_account_uses_nothing_up(pool: Pool):
    """Refused while suspended, good afterwards."""
    (number,) = await insert(pool)
    token, _ = await signed(pool, number)
    await set_status(pool, number, "suspended")
    uses = consumption(pool)
    assert await uses.consume(token) is None
    assert (await tokens(pool, number))[0]["consumed_at"] is None
    await set_status(pool, number, "active")
    assert await uses.consume(token) is not None


async def test_a_suspension_on_its_way_decides_before_the_token_is_used(any_pool: Pool):
    """The use waits for the suspension's commit, and then does not consume the token."""
    (number,) = await insert(any_pool)
    token, _ = await signed(any_pool, number)
    uses = consumption(any_pool)
    results: list[Consumed | None] = []
    async with trio.open_nursery() as nursery, any_pool.transaction() as suspending:
        await suspending.execute(
            "UPDATE relay.accounts SET status = 'suspended' WHERE id = %s", (number,)
        )
        nursery.start_soon(use, uses, (token,), results)
        await blocked(any_pool)
    assert results == [None]
    assert (await tokens(any_pool, number))[0]["consumed_at"] is None


async def test_whoever_locks_the_other_way_round_costs_no_token(pool: Pool):
    """Of two that wait for each other one is told to come again; nothing is lost."""
    (number,) = await insert(pool)
    token, _ = await signed(pool, number)
    uses = consumption(pool)
    results: list[str] = []

    async def attempt() -> None:
        try:
            results.append(str(await uses.consume(token) is not None))
        except DatabaseUnavailable:
            results.append("again")

    async with trio.open_nursery() as nursery:
        try:
            async with pool.transaction() as other_way:
                await other_way.execute("SELECT FROM relay.tokens FOR UPDATE")
                nursery.start_soon(attempt)
                await blocked(pool)
                await other_way.execute("UPDATE relay.accounts SET login = 'renamed'")
        except RolledBack:
            results.append("they")
    assert results in (["again"], ["they", "True"])
    assert (await uses.consume(token) is not None) is (results == ["again"])


async def test_a_code_that_was_changed_in_the_database_no_longer_opens(pool: Pool):
    """The signature is good still; the row decides."""
    number, token, code = await recovery(pool)
    await pool.execute(
        "UPDATE relay.tokens SET code = %s WHERE account = %s", (other(code), number)
    )
    assert await consumption(pool).consume(token, code) is None


async def test_keys_may_be_rotated_meanwhile(pool: Pool):
    """What a former key signed is good until the key is gone."""
    first, second = await insert(pool, 2)
    new = bytes(32)
    ring = [KEY]
    uses = Consumption(pool, lambda: ring)
    old_token, _ = await signed(pool, first)
    ring.insert(0, new)
    assert await uses.consume(old_token) is not None
    lost, _ = await signed(pool, second)
    ring.remove(KEY)
    assert await uses.consume(lost) is None
    assert await uses.consume((await signed(pool, second, new))[0]) is not None


async def test_a_token_used_here_is_refused_without_the_database(pool: Pool):
    """Until it expires; so an outage between reads nothing into it."""
    (number,) = await insert(pool)
    token, _ = await signed(pool, number)
    uses = consumption(pool)
    await uses.consume(token)
    await pool.close()
    assert await uses.consume(token) is None


async def test_codes_cannot_be_tried_out(pool: Pool, virtual: MockClock):
    """After so many wrong ones even the right one is refused, and is good after a pause."""
    _, token, code = await recovery(pool)
    _, another, its_code = await recovery(pool)
    uses = consumption(pool)
    for _ in range(FREE_GUESSES):
        assert await uses.consume(token, other(code)) is None
    assert await uses.consume(token, code) is None
    assert await uses.consume(another, its_code) is not None  # each token for itself
    virtual.jump(GUESS_EVERY + 1)
    assert await uses.consume(token, code) is not None


async def test_wrong_codes_do_not_hinder_activations(pool: Pool):
    """They need no code, so whatever is given beside them counts as nothing."""
    (number,) = await insert(pool)
    token, code = await signed(pool, number)
    uses = consumption(pool)
    for _ in range(FREE_GUESSES + 1):
        assert await uses.consume(token, other(code), action=Action.PASSWORD_RECOVERY) is None
    assert await uses.consume(token, other(code)) is not None


async def test_at_most_eighty_guesses_in_fifteen_minutes(autojump_clock: MockClock):
    """Whoever guesses as often as they are let."""
    guesses, token, made = Guesses(), b"token", 0
    with trio.move_on_after(900):
        while True:
            if guesses.may(token):
                guesses.wrong(token)
                made += 1
            else:
                await trio.sleep(0.5)
    assert made == FREE_GUESSES + 900 / GUESS_EVERY - 1 == 79


async def test_what_is_remembered_is_bounded(autojump_clock: MockClock):
    """The oldest go first, and whatever is over."""
    guesses = Guesses(most=100)
    for number in range(1000):
        guesses.wrong(b"%d" % number)
        assert len(guesses) <= 100
    await trio.sleep(GUESS_EVERY + 1)
    for number in range(100):
        guesses.wrong(b"new %d" % number)
    assert len(guesses) == 100
    uses = Consumption(None, partial(tuple, (KEY,)), 100)  # type: ignore[arg-type]  # remembers only
    for number in range(1000):
        uses.remember(b"%d" % number, 900.0)
    assert uses.remembered == 100
