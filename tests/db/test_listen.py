"""Wake-ups: nothing published is lost, and an outage ends in a fresh look."""

import os
import signal
from contextlib import aclosing

import pytest
import trio

from relay.db.connection import connect
from relay.db.hosts import Hosts
from relay.db.listen import AWAITED_FOR, Bell, Hub, Notification, Reconnected, notifications
from relay.db.lookout import Lookout
from relay.db.pool import Pool
from tests.db.bouncer import Bouncer
from tests.db.cluster import Cluster, TwoHosts
from tests.eventually import eventually


async def woken(subscription) -> bool:
    with trio.move_on_after(1) as scope:
        await subscription.wait()
    return not scope.cancelled_caught


class TestHub:
    async def test_a_key_wakes_its_own_subscribers(self, autojump_clock):
        """Publishing keys wakes those who wait for them, and those who want every key."""
        hub = Hub()
        with (
            hub.subscribe("c", "a") as a,
            hub.subscribe("c", "b") as b,
            hub.subscribe("c") as every,
            hub.subscribe("d", "a") as elsewhere,
        ):
            hub.publish("c", ["a"])
            assert [await woken(s) for s in (a, b, every, elsewhere)] == [True, False, True, False]

    async def test_a_part_of_a_key_wakes_those_who_wait_for_the_key(self, autojump_clock):
        """They hear of which part; who waits for another key whose name begins alike does not."""
        hub = Hub()
        with hub.subscribe("c", "a") as whole, hub.subscribe("c", "a:") as other:
            hub.publish("c", ["a:1", "b:2"])
            await whole.wait()
            assert whole.heard == {"a:1"}
            assert not other.woken

    @pytest.mark.parametrize("keys", [None, ["*"], ["x", "*"]])
    async def test_everyone_on_a_channel_can_be_woken(self, keys, autojump_clock):
        """None and the star concern every key of the channel and no other channel."""
        hub = Hub()
        with hub.subscribe("c", "a") as a, hub.subscribe("c") as b, hub.subscribe("d") as other:
            hub.publish("c", keys)
            assert [await woken(s) for s in (a, b, other)] == [True, True, False]

    async def test_a_bell_rings_for_each_subscription_that_has_it(self, autojump_clock):
        """Once for as many as were woken, and again when one is woken again."""
        hub, bell = Hub(), Bell()
        with (
            hub.subscribe("c", "a", bell=bell) as a,
            hub.subscribe("d", bell=bell),
            hub.subscribe("c", "b"),
        ):
            hub.publish("c", ["b"])
            assert not await woken(bell)
            hub.publish("c", ["a"])
            hub.publish("d", ["x"])
            assert await woken(bell)
            assert not await woken(bell)
            assert a.woken
            hub.publish("c", ["a"])
            assert await woken(bell)
        hub.publish_all()
        assert not await woken(bell)

    async def test_those_of_an_owner_hear_of_what_names_it_or_nobody(self, autojump_clock):
        """With all keys of mailboxes that came with it; a relay of before names no owner."""
        hub = Hub()
        with hub.subscribe("mail", "=ada") as ada, hub.subscribe("mail", "=bob") as bob:
            assert hub.statistics() == {"mail": 2}
            assert not hub.is_awaited("mail")  # nobody waits for one mailbox
            hub.publish("mail", {"a", "b", "=ada", "="})
            assert (ada.woken, bob.woken) == (True, False)
            await ada.wait()
            assert ada.heard == {"a", "b"}
            hub.publish("post", {"c"})
            assert not bob.woken
            hub.publish("mail", {"c"})
            await bob.wait()
            assert bob.heard == {"c"}
            hub.publish("mail", {"*", "=ada"})
            await ada.wait()
            assert ada.heard is None
            assert not bob.woken
            hub.publish("mail", None)
            await bob.wait()
            assert bob.heard is None
        assert hub.statistics() == {}

    async def test_a_channel_is_awaited_by_those_who_wait_for_a_key(self, autojump_clock):
        """Not by those who want all of it, nor on another."""
        hub = Hub()
        with hub.subscribe("c"), hub.subscribe("d", "a"):
            assert not hub.is_awaited("c")
            with hub.subscribe("c", "a"):
                assert hub.is_awaited("c")
            assert not hub.is_awaited("c")

    async def test_who_waited_for_a_key_a_moment_ago_counts(self, autojump_clock):
        """As who still does; not who wanted all of the channel, or waited on another."""
        hub = Hub()
        with hub.subscribe("c"), hub.subscribe("d", "a"):
            pass
        assert (hub.was_awaited("c"), hub.was_awaited("d")) == (False, True)
        await trio.sleep(AWAITED_FOR + 1)
        assert not hub.was_awaited("d")
        with hub.subscribe("d", "a"):
            await trio.sleep(AWAITED_FOR + 1)
            assert hub.was_awaited("d")

    async def test_publish_all_wakes_every_channel(self, autojump_clock):
        """After a reconnect everybody looks again."""
        hub = Hub()
        with hub.subscribe("c", "a") as a, hub.subscribe("d") as b:
            hub.publish_all()
            assert await woken(a)
            assert await woken(b)

    async def test_wake_ups_fold_into_one_and_none_is_lost(self, autojump_clock):
        """Many wake-ups before a wait are one; one during the work is seen by the next wait."""
        hub = Hub()
        with hub.subscribe("c") as subscription:
            hub.publish("c", None)
            hub.publish("c", None)
            assert await woken(subscription)
            assert not await woken(subscription)
            hub.publish("c", None)
            assert await woken(subscription)

    async def test_a_cancelled_wait_does_not_eat_the_wake_up(self, autojump_clock):
        """A wake-up that arrives as the waiter is cancelled is there for the next wait."""
        hub = Hub()
        with hub.subscribe("c") as subscription:
            with trio.CancelScope() as scope:
                scope.cancel()
                hub.publish("c", None)
                await subscription.wait()
            assert scope.cancelled_caught
            assert await woken(subscription)

    async def test_leaving_the_block_forgets_the_subscriber(self, autojump_clock):
        """Nothing is kept of subscriptions that ended."""
        hub = Hub()
        with hub.subscribe("c", "a"), hub.subscribe("c", "a"):
            assert hub.statistics() == {"c": 2}
        assert hub.statistics() == {}


class TestNotifications:
    async def test_it_begins_with_reconnected_and_goes_on_with_notifications(
        self, any_database_url
    ):
        """LISTEN is in effect when Reconnected arrives: nothing sent after it is missed."""
        async with aclosing(notifications(any_database_url, ["news", "Other"])) as heard:
            assert await anext(heard) == Reconnected(first=True)
            async with await connect(any_database_url) as other:
                await other.execute("""NOTIFY news, 'a'; NOTIFY "Other", 'b'""")
            assert await anext(heard) == Notification("news", "a")
            assert await anext(heard) == Notification("Other", "b")

    async def test_a_terminated_connection_is_replaced(self, any_database_url):
        """After the backend was terminated, Reconnected comes again and LISTEN is back."""
        async with aclosing(notifications(any_database_url, ["news"])) as heard:
            await anext(heard)
            async with await connect(any_database_url) as other:
                await other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE application_name = 'relay-listen'"
                )
                assert await anext(heard) == Reconnected(first=False)
                await other.execute("NOTIFY news, 'again'")
            assert await anext(heard) == Notification("news", "again")

    async def test_a_silent_connection_is_noticed(self, any_database_url):
        """A backend that stopped answering is found by the ping and replaced."""
        async with aclosing(
            notifications(any_database_url, ["news"], ping_every=0.05, ping_timeout=0.3)
        ) as heard:
            await anext(heard)
            async with await connect(any_database_url) as other:
                cursor = await other.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name = 'relay-listen'"
                )
                row = await cursor.fetchone()
                assert row is not None
            os.kill(row[0], signal.SIGSTOP)
            try:
                with trio.fail_after(10):
                    assert await anext(heard) == Reconnected(first=False)
            finally:
                os.kill(row[0], signal.SIGCONT)

    async def test_an_outage_is_waited_out(self, server: Cluster):
        """While the server is down nothing is yielded; when it is back, Reconnected is."""
        seen = []
        async with trio.open_nursery() as nursery:

            async def listen() -> None:
                async with aclosing(notifications(server.dsn(), ["news"])) as heard:
                    async for event in heard:
                        seen.append(event)
                        if len(seen) == 2:
                            return

            nursery.start_soon(listen)
            await eventually(lambda: seen, "it listens")
            await trio.to_thread.run_sync(server.stop)
            await trio.to_thread.run_sync(server.start)
            await eventually(lambda: len(seen) == 2, "it listens again")
            nursery.cancel_scope.cancel()
        assert seen == [Reconnected(first=True), Reconnected(first=False)]

    async def test_a_pooler_that_changes_the_server_is_noticed(self, server: Cluster):
        """Behind the same connection another server process answers, which does not listen: the
        next ping finds that out, and there is a fresh look."""
        with Bouncer(server.dsn()) as bouncer:
            async with aclosing(notifications(bouncer.dsn, ["news"], ping_every=0.1)) as heard:
                assert await anext(heard) == Reconnected(first=True)
                async with await connect(server.dsn()) as other:
                    await other.execute(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name = 'relay-listen'"
                    )
                with trio.fail_after(10):
                    assert await anext(heard) == Reconnected(first=False)

    async def test_the_listener_follows_the_pool_to_another_system(self, server: Cluster):
        """The old server lives and answers still; the pool has met the database that the operator
        moved to, so the listener connects anew, and not before."""
        moved, hosts = Cluster(server.bin_dir), Hosts()
        moved.start()
        pool = Pool(moved.dsn(), hosts=hosts)
        try:
            async with aclosing(
                notifications(server.dsn(), ["news"], ping_every=0.1, hosts=hosts)
            ) as heard:
                assert await anext(heard) == Reconnected(first=True)
                async with await connect(server.dsn()) as other:
                    await trio.sleep(0.5)  # pings find that nothing has moved
                    await other.execute("NOTIFY news, 'here'")
                assert await anext(heard) == Notification("news", "here")
                assert await pool.fetch_value("SELECT 1") == 1
                with trio.fail_after(10):
                    assert await anext(heard) == Reconnected(first=False)
        finally:
            await pool.close()
            moved.remove()

    async def test_the_listener_leaves_a_primary_that_was_left_behind(self):
        """It serves well and says that it is a primary; the pool has met the one promoted."""
        pair = TwoHosts(18)
        hosts = Hosts()
        lookout = Lookout(pair.dsn, hosts)
        try:
            async with aclosing(
                notifications(pair.dsn, ["news"], ping_every=0.1, hosts=hosts)
            ) as heard:
                assert await anext(heard) == Reconnected(first=True)
                await lookout.look(5.0)
                await trio.to_thread.run_sync(pair.new.promote)
                await lookout.look_around(5.0)
                with trio.fail_after(10):
                    assert await anext(heard) == Reconnected(first=False)
                async with await connect(pair.new.dsn("mail")) as promoted:
                    await promoted.execute("NOTIFY news, 'here'")
                with trio.fail_after(10):
                    assert await anext(heard) == Notification("news", "here")
        finally:
            lookout.close()
            pair.remove()
