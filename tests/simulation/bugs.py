"""Bugs to be planted in a copy of the product (`tests.simulation.planted`).

Each is one small change, of the kind that is made by mistake, and names the promise that it breaks.
`seed` is one with which the simulation finds it.
docs/simulation.md has them as a table.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """One bug: in `file`, `old` (which stands there once) is replaced by `new`."""

    name: str
    file: str
    old: str
    new: str
    broken: str
    """A part of what the judge says."""
    seed: int = 1
    days: str = "0.01"
    faults: str = ""
    """Those that are looked with, where most have nothing to do with it; "": all."""


BUGS = (
    Planted(
        "a message is not put down to be parsed",
        "relay/mailboxes/accept.py",
        "        SELECT id, mailbox_id, size FROM stored\n        {requeue}",
        "        SELECT id, mailbox_id, size FROM stored WHERE size < 60000\n        {requeue}",
        "never summarised",
        days="0.003",
    ),
    Planted(
        "a commit whose answer was lost counts as done",
        "actors/writer.py",
        "stored = await self._look(batch, str(error))",
        "stored = set(_ids(batch))",
        "250 was said, and it is not there",
        seed=1,
    ),
    Planted(
        "the Ack goes out before the blob is stored",
        "relay/devices/push.py",
        "        await self._put(blobs, answers)\n        self._channel.post(*answers)\n",
        "        self._channel.post(*answers)\n        await self._put(blobs, answers)\n",
        "acknowledged, and its device never got it",
        seed=1,
    ),
    Planted(
        "a message is stored without a look at the mailbox's end",
        "relay/mailboxes/accept.py",
        "              AND b.is_active\n              AND b.expires_at > clock_timestamp()\n"
        "            LIMIT 1",
        "            LIMIT 1",
        "s after its end",
        seed=3,
    ),
    Planted(
        "a deferral counts as a delivery",
        "relay/outbound/queue/states.py",
        "    return Cause.EXHAUSTED if last else Cause.DEFERRED",
        "    return Cause.EXHAUSTED if last else Cause.DELIVERED",
        "said to be sent, and nobody got it",
    ),
    Planted(
        "an attempt too few",
        "relay/outbound/pacing/backoff.py",
        "        return attempt >= self.max_attempts or",
        "        return attempt >= 2 or",
        "accepted, and in the end failed",
        seed=2,
    ),
    Planted(
        "no answer after the dot counts as a delivery",
        "relay/smtp/client.py",
        "_doubt = Ruling(Verdict.UNKNOWN, True, False)",
        "_doubt = Ruling(Verdict.DELIVERED, True, False)",
        "said to be sent, and nobody got it",
        seed=2,
    ),
    Planted(
        "a claim takes what another has leased",
        "relay/db/migrations/0054_tls_optional.sql",
        "              AND d.run_at <= now()",
        "              AND d.run_at <= now() + interval '10 minutes'",
        "without excuse",
    ),
    Planted(
        "a letter is queued after its token was taken, and not with it",
        "relay/lifecycle/token_mailer.py",
        "            async with self.pool.transaction(patience=_TIMEOUT) as connection:\n"
        "                return await self._batch",
        "            async with self.pool.connection(patience=_TIMEOUT) as connection:\n"
        "                return await self._batch",
        "and the budget paid for",
        seed=2,
    ),
    Planted(
        "the outcome of a delivery is given up when the database is away",
        "relay/outbound/queue/finaliser.py",
        "                await trio.sleep(outage.lost())\n                repeated = True\n",
        "                return set()\n",
        "without excuse",
        seed=1,
        faults="database,disk",
    ),
    Planted(
        "the relay does not listen again when the database is back",
        "relay/db/listen.py",
        "        await trio.sleep(pause)\n",
        "        await trio.sleep(pause * 1e6)\n",
        "nothing is wrong, and it takes over",
        seed=2,
        days="0.004",
    ),
    Planted(
        "a receiver's error counts as told",
        "actors/webhooks.py",
        "        if 200 <= status < 300:",
        "        if 200 <= status < 600:",
        "arrived, and nobody was told",
    ),
    Planted(
        "a webhook is given up after its first attempt",
        "actors/webhooks.py",
        "if final or event.attempt >= self._max_attempts:",
        "if final or event.attempt >= 1:",
        "arrived, and nobody was told",
    ),
    Planted(
        "the lease of a webhook outlasts its node by hours",
        "relay/webhooks/store.py",
        "make_interval(secs => %(lease)s)",
        "make_interval(secs => %(lease)s * 1000)",
        "there are still",
    ),
    Planted(
        "a refusal for now counts as one for good",
        "relay/smtp/client.py",
        "_later = Ruling(Verdict.DEFERRED,",
        "_later = Ruling(Verdict.FAILED,",
        "accepted, and in the end failed",
        seed=2,
    ),
    Planted(
        "trouble on the way counts as a refusal for good",
        "relay/smtp/client.py",
        "_route = Ruling(Verdict.DEFERRED,",
        "_route = Ruling(Verdict.FAILED,",
        "accepted, and in the end failed",
        seed=2,
    ),
    Planted(
        "mailboxes are closed five minutes late",
        "relay/mailboxes/expiry.py",
        "          AND expires_at <= now()\n",
        "          AND expires_at <= now() - interval '5 minutes'\n",
        "it is closed late",
    ),
    Planted(
        "a token wakes nobody",
        "relay/db/migrations/0004_lifecycle.sql",
        "    WHERE n.consumed_at IS NULL;\n    IF FOUND THEN\n"
        "        PERFORM pg_notify('token_insert', '');",
        "    WHERE n.consumed_at IS NULL;\n    IF FOUND THEN\n        PERFORM NULL;",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "mail that arrives does not wake who tells of it",
        "relay/db/migrations/0003_webhooks.sql",
        "      AND m.expires_at > now();\n    IF FOUND THEN\n"
        "        PERFORM pg_notify('relay_webhooks', '');",
        "      AND m.expires_at > now();\n    IF FOUND THEN\n        PERFORM NULL;",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "an acknowledgement deletes what came after it",
        "relay/db/migrations/0005_devices.sql",
        "    USING unnest(recipients, ids) AS d (recipient, id)\n"
        "    WHERE b.recipient = d.recipient\n      AND b.id = d.id;",
        "    USING unnest(recipients, ids) AS d (recipient, id)\n"
        "    WHERE b.recipient = d.recipient\n      AND b.id >= d.id;",
        "acknowledged, and its device never got it",
    ),
    Planted(
        "a claim outlasts its node by hours",
        "relay/outbound/queue/store.py",
        "*(claim, self.lease_timeout, lanes,",
        "*(claim, self.lease_timeout * 100, lanes,",
        "there are still",
        seed=1,
        faults="kill,peer",
    ),
    Planted(
        "mail that a node was parsing stays its own for hours",
        "actors/summariser.py",
        "    lease_for: float = 2.0,\n",
        "    lease_for: float = 7200.0,\n",
        "there are still",
        faults="kill,database",
    ),
    Planted(
        "250 is said before the commit",
        "actors/writer.py",
        "            stored = await self._insert(batch, again=again)\n        except (RolledBack",
        "            for one in batch:\n"
        "                one.message.reply.settle(\n"
        "                    Accepted({address: id_ for id_, address in one.message.recipients})\n"
        "                )\n"
        "            stored = await self._insert(batch, again=again)\n"
        "        except (RolledBack",
        "250 was said, and it is not there",
        seed=3,
    ),
    Planted(
        "a recipient whose mailbox took nothing counts as stored",
        "actors/writer.py",
        "                {address: id_ for id_, address in message.recipients if id_ in stored},",
        "                {address: id_ for id_, address in message.recipients},",
        "250 was said, and it is not there",
        seed=4,
    ),
    Planted(
        "a mailbox shows its mail for five minutes after its end",
        "relay/mailboxes/visibility.py",
        'LIVE = "b.is_active AND b.expires_at > now()"',
        "LIVE = \"b.expires_at > now() - interval '5 minutes'\"",
        "was over, and showed its mail",
    ),
    Planted(
        "what is stored of a message ends at 64 KiB",
        "actors/writer.py",
        "rows.append(Row(identity, address, message.reverse_path, message.raw))",
        "rows.append(Row(identity, address, message.reverse_path, message.raw[:65536]))",
        "stored are other bytes than were sent",
        days="0.003",
    ),
    Planted(
        "mail that was stored does not wake who parses it",
        "actors/writer.py",
        "        if coming is None or not self._parse_ahead(coming):\n"
        "            found = await self._insert_rows(batch)\n"
        "            self._wake_summariser()\n",
        "        if True:\n            found = await self._insert_rows(batch)\n",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "a mailbox that is made does not wake who closes it",
        "relay/db/migrations/0001_inboxes.sql",
        "AS $$\n"
        "DECLARE\n"
        "    earliest timestamptz;\n"
        "BEGIN\n"
        "    SELECT min(expires_at) INTO earliest FROM new_rows WHERE is_active;\n"
        "    IF earliest IS NOT NULL THEN\n"
        "        PERFORM pg_notify('relay_expiry', extract(epoch FROM earliest)::text);",
        "AS $$\n"
        "DECLARE\n"
        "    earliest timestamptz;\n"
        "BEGIN\n"
        "    SELECT min(expires_at) INTO earliest FROM new_rows WHERE is_active;\n"
        "    IF earliest IS NOT NULL THEN\n"
        "        PERFORM NULL;",
        "it is closed late",
        days="0.003",
    ),
    Planted(
        "who closes mailboxes waits for the last one's end",
        "relay/mailboxes/expiry.py",
        "            WHERE is_active\n            ORDER BY expires_at, id\n            LIMIT 1)",
        "            WHERE is_active\n"
        "            ORDER BY expires_at DESC, id\n"
        "            LIMIT 1)",
        "it is closed late",
        days="0.003",
    ),
    Planted(
        "a lease that ran out is nobody else's",
        "relay/db/leases.py",
        "        WHERE l.expires_at <= now() OR l.node = excluded.node",
        "        WHERE l.node = excluded.node",
        "there are still",
    ),
    Planted(
        "the lease of who closes mailboxes outlasts its node by hours",
        "actors/ticker.py",
        "leases.acquire(self.pool, _LEASE, self.node, self.lease_ttl)",
        "leases.acquire(self.pool, _LEASE, self.node, self.lease_ttl * 1000)",
        "mailboxes open after their end",
        seed=8,
    ),
    Planted(
        "a letter that is queued wakes nobody",
        "actors/collector.py",
        "            self._wake_outbound(batch.due_lanes)",
        "            pass",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "a message that waits to be told of counts as gone",
        "relay/webhooks/store.py",
        "              AND b.is_active\n"
        "              AND b.expires_at > now()\n"
        '            """,\n'
        "            (event.subject_id,),",
        "              AND b.is_active\n"
        "              AND b.expires_at > now() + interval '7 days'\n"
        '            """,\n'
        "            (event.subject_id,),",
        "arrived, and nobody was told",
        days="0.003",
    ),
    Planted(
        "a webhook that was told is told again",
        "relay/webhooks/store.py",
        '"DELETE FROM relay.webhook_events WHERE id = %s AND token = %s"',
        '"DELETE FROM relay.webhook_events WHERE id = %s AND token < %s"',
        "there are still",
        days="0.003",
    ),
    Planted(
        "a webhook is put off for hours",
        "relay/webhooks/store.py",
        "                run_at = clock_timestamp() + make_interval(secs => %s),",
        "                run_at = clock_timestamp() + make_interval(hours => (%s)::integer),",
        "there are still",
    ),
    Planted(
        "what a device has acknowledged is not deleted",
        "relay/devices/receive.py",
        "await self._delete({blob_id for blob_id in acknowledged if blob_id <= _MAX_ID})",
        "pass",
        "delivered after it was acknowledged, without excuse",
        days="0.003",
    ),
    Planted(
        "a page of blobs begins one too late",
        "relay/devices/postgres.py",
        "                          AND id > %b",
        "                          AND id > %b + 1",
        "there are still",
        days="0.003",
    ),
    Planted(
        "a connection that broke keeps its place in the pool",
        "relay/db/pool.py",
        "                self._discard(conn)\n                self._slots.release()",
        "                self._discard(conn)",
        "nothing is wrong, and the answer is doubt",
        seed=4,
    ),
    Planted(
        "blobs count as stored when the database was away",
        "relay/devices/postgres.py",
        "            _fail(group, str(error))\n        else:",
        "            for one in group:\n                one.settle(Stored(0, 0.0))\n        else:",
        "acknowledged, and its device never got it",
    ),
    Planted(
        "a blob that the store could not take is acknowledged",
        "relay/devices/intake.py",
        "            raise self.refused(Reason.UNAVAILABLE, error.retry_after) from error\n"
        "        _STORED.inc()",
        "            return Stored(0, 0.0)\n        _STORED.inc()",
        "acknowledged, and its device never got it",
    ),
    Planted(
        "bulk mail is queued and never due",
        "relay/outbound/queue/enqueue.py",
        "        JOIN letters l ON l.id = g.id\n    )",
        "        JOIN letters l ON l.id = g.id AND g.priority < 2\n    )",
        "202 was said, and it is not in the queue",
        days="0.003",
    ),
    Planted(
        "mail without an instant is due in two hours",
        "relay/outbound/queue/enqueue.py",
        "GREATEST(m.send_at, go.at - make_interval(",
        "GREATEST(m.send_at, go.at + interval '2 hours' - make_interval(",
        "there are still",
        days="0.003",
    ),
    Planted(
        "the first of a batch of tokens gets no letter",
        "relay/lifecycle/token_mailer.py",
        "self._write(batch.rows[at : at + _CHUNK], signer, refused)",
        "self._write(batch.rows[at + 1 : at + _CHUNK], signer, refused)",
        "has an account and got no letter",
        days="0.003",
    ),
    Planted(
        "a delivery counts as a deferral",
        "relay/outbound/queue/settler.py",
        "        cause = Cause.DELIVERED\n",
        "        cause = Cause.DEFERRED\n",
        "without excuse",
        days="0.003",
    ),
    Planted(
        "that the server closes after the dot counts as a delivery",
        "relay/smtp/client.py",
        "(_sent,  _doubt, _later,   _fail,    _route, _doubt,",
        "(_sent,  _doubt, _later,   _fail,    _sent,  _doubt,",
        "said to be sent, and nobody got it",
        seed=2,
    ),
    Planted(
        "a refusal for now after the dot counts as a delivery",
        "relay/smtp/client.py",
        "(_sent,  _doubt, _later,   _fail,",
        "(_sent,  _doubt, _sent,    _fail,",
        "said to be sent, and nobody got it",
        seed=4,
    ),
    Planted(
        "a recipient who is refused for now counts as bounced",
        "relay/smtp/client.py",
        "(_on,    _route, _later,   _bounce,",
        "(_on,    _route, _bounce,  _bounce,",
        "accepted, and in the end bounced",
        seed=2,
    ),
    Planted(
        "a server that is not ready counts as a refusal for good",
        "relay/smtp/client.py",
        "Phase.CONNECT: (_on,    _route, _route,",
        "Phase.CONNECT: (_on,    _route, _fail,",
        "accepted, and in the end failed",
        seed=2,
    ),
    Planted(
        "a retry waits for minutes what it should for seconds",
        "relay/db/migrations/0041_notices.sql",
        "clock_timestamp() + make_interval(secs => g.delay)",
        "clock_timestamp() + make_interval(hours => g.delay::integer)",
        "there are still",
    ),
    Planted(
        "a receiver's error is taken for its end",
        "actors/webhooks.py",
        "            final = status == _GONE",
        "            final = status >= 500",
        "arrived, and nobody was told",
    ),
    Planted(
        "a receiver that hangs up is given up",
        "actors/webhooks.py",
        "            final = isinstance(failure, Refused)",
        "            final = True",
        "arrived, and nobody was told",
    ),
    Planted(
        "of several outcomes the first is recorded",
        "relay/outbound/queue/finaliser.py",
        "self._waiting[:_MOST], self._waiting[_MOST:]",
        "self._waiting[:1], self._waiting[_MOST:]",
        "without excuse",
        seed=1,
    ),
    Planted(
        "a letter counts as expired while its token is good",
        "relay/db/migrations/0054_tls_optional.sql",
        "                   OR t.expires_at <= extract(epoch FROM clock_timestamp()) AS over,",
        "                   OR t.expires_at >= extract(epoch FROM clock_timestamp()) AS over,",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "who looks for what is due leaves out bulk mail",
        "relay/db/migrations/0046_owners_turns.sql",
        "    WHERE isfinite(s.run_at);\nEND",
        "    WHERE isfinite(s.run_at) AND s.priority < 2;\nEND",
        "there are still",
    ),
    Planted(
        "a blob lives for seconds instead of days",
        "relay/db/migrations/0010_blob_lifetimes.sql",
        "begun + make_interval(secs => a.ttl) AS until",
        "begun + make_interval(secs => a.ttl / 86400) AS until",
        "acknowledged, and its device never got it",
    ),
    Planted(
        "a way that failed is closed for days",
        "relay/outbound/pacing/gates.py",
        "        self.opens_at = now + pause(self.strikes, self._unit, self._rng)",
        "        self.opens_at = now + pause(self.strikes, self._unit, self._rng) * 10_000",
        "nothing is wrong, and it takes over",
        seed=6,
    ),
    Planted(
        "a post that has ended keeps its place",
        "actors/webhooks.py",
        "            self._under_way[event.origin] -= 1\n",
        "",
        "arrived, and nobody was told",
    ),
    Planted(
        "a device's session that has ended counts still",
        "relay/devices/receive.py",
        "            self._device_sessions.leave(self._key, self)",
        "            pass",
        "there are still",
        seed=2,
    ),
    Planted(
        "a worker that has ended keeps its place",
        "relay/outbound/delivery/workers.py",
        "        finally:\n            self._dispatch.leave(place)\n",
        "        finally:\n",
        "there are still",
    ),
    Planted(
        "mail that may be stored is refused for good",
        "relay/smtp/reception.py",
        '            self._responder.refuse(b"451 4.3.0 Try again later\\r\\n")\n'
        "        elif accepted.stored:",
        '            self._responder.refuse(b"554 5.3.0 Refused\\r\\n")\n'
        "        elif accepted.stored:",
        "refused, and it is there",
        seed=2,
        faults="partition,stall",
    ),
    Planted(
        "a call that may be done is answered with a refusal",
        "relay/http/problems/details.py",
        '    return Problem(503, "unavailable", detail, headers',
        '    return Problem(422, "invalid", detail, headers',
        "refused, and it is in the queue",
        seed=4,
    ),
    Planted(
        "the listener does not hear of webhooks",
        "relay/db/channels.py",
        "    OUTBOUND,\n    WEBHOOKS,\n    DEVICES,",
        "    OUTBOUND,\n    DEVICES,",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "mail that is queued does not wake who sends it",
        "relay/outbound/submission/sending.py",
        "            self._wake(due_lanes)",
        "            pass",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "two messages of one commit get the bytes of the first",
        "actors/writer.py",
        "rows.append(Row(identity, address, message.reverse_path, message.raw))",
        "rows.append(Row(identity, address, message.reverse_path, batch[0].message.raw))",
        "handed in once, and there 2 times",
        seed=1,
        days="0.02",
    ),
    Planted(
        "mail is put back into the queue by who had lost it",
        "relay/db/migrations/0041_notices.sql",
        "        WHERE d.id = ANY (ARRAY[g.id])\n"
        "          AND d.token = g.token\n"
        "          AND g.status IN ('queued', 'held')",
        "        WHERE d.id = ANY (ARRAY[g.id])\n          AND g.status IN ('queued', 'held')",
        "without excuse",
        seed=4,
        faults="freeze,peer",
        days="0.02",
    ),
    Planted(
        "an outcome counts although its lease was lost",
        "relay/db/migrations/0041_notices.sql",
        "        WHERE d.id = ANY (ARRAY[g.id])\n"
        "          AND d.token = g.token\n"
        "          AND g.status NOT IN ('queued', 'held')",
        "        WHERE d.id = ANY (ARRAY[g.id])\n          AND g.status NOT IN ('queued', 'held')",
        "nobody refused it after that",
        seed=75,
        faults="freeze,peer",
        days="0.02",
    ),
    Planted(
        "that the server says nothing after the dot counts as a refusal for good",
        "relay/smtp/client.py",
        "(_sent,  _doubt, _later,   _fail,    _route, _doubt,  _doubt, _doubt)",
        "(_sent,  _doubt, _later,   _fail,    _route, _doubt,  _doubt, _fail)",
        "accepted, and in the end failed",
    ),
    Planted(
        "a server that hangs up before the dot has bounced the mail",
        "relay/smtp/client.py",
        "outcome = _outcome(_route, Phase.MAIL",
        "outcome = _outcome(_bounce, Phase.MAIL",
        "accepted, and in the end bounced",
        seed=2,
    ),
    Planted(
        "a server that closes at a recipient has bounced the mail",
        "relay/smtp/client.py",
        "(_on,    _route, _later,   _bounce,  _route, _route,  _route, _route)",
        "(_on,    _route, _later,   _bounce,  _bounce, _route,  _route, _route)",
        "accepted, and in the end bounced",
        seed=2,
    ),
    Planted(
        "a server that hangs up at once has refused for good",
        "relay/smtp/client.py",
        "Phase.CONNECT: (_on,    _route, _route,   _route,   _route, _route,  _route, _route)",
        "Phase.CONNECT: (_on,    _route, _route,   _route,   _route, _route,  _fail, _route)",
        "accepted, and in the end failed",
        seed=1,
    ),
    Planted(
        "what a look shows counts as durable",
        "relay/db/pool.py",
        "                    await conn.execute(BARRIER)\n",
        "                    pass\n",
        "250 was said, and it is not there",
        seed=2,
        faults="failover",
    ),
    Planted(
        "what the budget has spent is not put down",
        "relay/lifecycle/taking.py",
        "    await budget_store.save(connection, left)\n",
        "",
        "and the budget paid for",
        seed=2,
    ),
    Planted(
        "an activation goes before a recovery",
        "relay/db/migrations/0004_lifecycle.sql",
        "strips := '{password_recovery,activation,password_recovery}';",
        "strips := '{activation,password_recovery,activation}';",
        "went before the recovery",
        seed=2,
        faults="peer",
    ),
    Planted(
        "an activation leaves its account as it was",
        "relay/db/migrations/0007_deadlines.sql",
        "        SET status = 'active'\n        WHERE id = NEW.account\n"
        "          AND status = 'provisioned';",
        "        SET status = 'provisioned'\n        WHERE id = NEW.account\n"
        "          AND status = 'provisioned';",
        "was told that it is active",
        days="0.003",
    ),
    Planted(
        "a full disk counts as the fault of the statement",
        "relay/db/pool.py",
        '_UNAVAILABLE = ("08", "53", "57", "58", "25006")',
        '_UNAVAILABLE = ("08", "57", "58", "25006")',
        "without excuse",
        faults="disk",
    ),
    Planted(
        "news of other keys is lost",
        "relay/outbound/signing/signer.py",
        "                    await news.wait()\n",
        "                    await trio.sleep_forever()\n",
        "and not by the keys that sign",
        seed=5,
    ),
    Planted(
        "a retired key signs on",
        "relay/outbound/signing/dkim_keys.py",
        "            WHERE state = 'active'\n            ORDER BY domain, algorithm DESC",
        "            WHERE state <> 'standby'\n            ORDER BY domain, algorithm DESC",
        "and not by the keys that sign",
        seed=5,
        days="0.006",
    ),
    Planted(
        "every return path is that of a message",
        "relay/returns/paths.py",
        "        return message if any(fits) else None",
        "        return message if fits else None",
        "250 was said to a forged report",
        seed=5,
        days="0.006",
    ),
    Planted(
        "a complaint suppresses nobody",
        "relay/returns/law.py",
        "        return Finding(Kind.COMPLAINED, error=report.feedback, suppress=True)",
        "        return Finding(Kind.COMPLAINED, error=report.feedback)",
        "suppressed nobody",
        seed=5,
        days="0.006",
    ),
    Planted(
        "who refuses for policy is suppressed",
        "relay/returns/law.py",
        "        suppress=fits and enhanced in _GONE and may_be_gone(one.diagnostic),",
        "        suppress=named,",
        "and nobody said why",
        seed=5,
        days="0.006",
    ),
    Planted(
        "a key that DANE does not name will do",
        "relay/outbound/mx/dane.py",
        "    return TlsPolicy(Security.VERIFIED, Matching(records, names), NAME, base, published)",
        "    return TlsPolicy(Security.ENCRYPTED, None, NAME, base, published)",
        "by a key that its domain does not name",
        seed=3,
        days="0.006",
        faults="peer",
    ),
    Planted(
        "mail that must go by TLS goes in clear where STARTTLS is not offered",
        "relay/outbound/mx/connections.py",
        "            route, tls=TlsMode.STARTTLS, accepts=",
        "            route, tls=TlsMode.OPPORTUNISTIC, accepts=",
        "in clear",
        seed=3,
        days="0.006",
        faults="peer",
    ),
    Planted(
        "a resolver that says nothing at first counts as one that does not validate",
        "relay/outbound/mx/dane.py",
        "        return self._on is not False\n",
        "        return bool(self._on)\n",
        "@two.example: went to mx",
        seed=15,
        faults="kill,peer",
    ),
    Planted(
        "a deferral puts a message aside",
        "relay/outbound/queue/states.py",
        "    (State.PROCESSING, Cause.DEFERRED): State.QUEUED,",
        "    (State.PROCESSING, Cause.DEFERRED): State.HELD,",
        "held, and nobody had vanished with it",
        days="0.003",
        faults="peer",
    ),
    Planted(
        "another text goes out than was written",
        "relay/outbound/delivery/render.py",
        "    body = _body(claimed.text_body)\n",
        "    body = _body(claimed.text_body.upper())\n",
        "a server got another text than was written",
        days="0.003",
    ),
    Planted(
        "a recipient is refused for good when the database is away",
        "relay/smtp/commands.py",
        '            return "451 4.3.0 Try again later"\n        refusal = await',
        '            return "550 5.3.0 Go away"\n        refusal = await',
        "refused for good, and its mailbox takes mail",
        seed=2,
        days="0.003",
        faults="database,stall",
    ),
    Planted(
        "of several recipients the first alone gets the mail",
        "actors/writer.py",
        "message.reverse_path, message.recipients, message.raw, message.origin",
        "message.reverse_path, message.recipients[:1], message.raw, message.origin",
        "250 was said, and it is not there",
        days="0.003",
    ),
    Planted(
        "an address that nobody has is welcome",
        "relay/mailboxes/accept.py",
        'question.settle(None if self._captured(question.address) else "unknown")',
        "question.settle(None)",
        "and that is nobody",
        days="0.003",
    ),
    Planted(
        "each post of an event has an id of its own",
        "actors/webhooks.py",
        "event.signer, event.id, body, int(time()))",
        "event.signer, UUID(int=event.id.int + event.attempt), body, int(time()))",
        "with another id than its event's",
        days="0.003",
    ),
    Planted(
        "the time of a post is not signed",
        "relay/webhooks/signing.py",
        '    content = f"{name}.{at}.".encode() + body\n',
        '    content = f"{name}.".encode() + body\n',
        "was told of, and not signed",
        days="0.003",
    ),
    Planted(
        "a webhook that is being posted is claimed again",
        "relay/webhooks/store.py",
        "                      AND e.run_at <= now()\n",
        "                      AND e.run_at <= now() + interval '10 minutes'\n",
        "both under way, without excuse",
        seed=3,
        days="0.003",
    ),
    Planted(
        "a message is shown whose mailbox ends while it is asked for",
        "relay/mailboxes/messages.py",
        '      AND m.id = %(message)s\n      AND {LIVE}"""',
        '      AND m.id = %(message)s"""',
        "its mail was read",
        seed=2,
        days="0.003",
    ),
    Planted(
        "nobody asks at the dot whether there is room",
        "actors/writer.py",
        "        if not room:\n            return batch\n        rest = []",
        "        if True:\n            return batch\n        rest = []",
        "250 was said, and",
        seed=6,
        days="0.003",
    ),
    Planted(
        "what was deleted counts in its mailbox still",
        "relay/db/migrations/0034_unread.sql",
        "    SELECT o.mailbox_id, -count(*), -sum(o.size),",
        "    SELECT o.mailbox_id, 0, 0,",
        "was refused, and",
        seed=6,
        days="0.003",
    ),
    Planted(
        "a full mailbox refuses for good",
        "relay/smtp/dialogue.py",
        'FULL = "452 4.2.2 Mailbox full, try again later"',
        'FULL = "552 5.2.2 Mailbox full"',
        "refused for good, and its mailbox takes mail",
        seed=6,
        days="0.003",
    ),
    Planted(
        "the listener does not hear of mail that can be read",
        "relay/db/channels.py",
        "    SUMMARIES,\n",
        "",
        "a wait for",
        days="0.003",
    ),
    Planted(
        "an Idempotency-Key is of no effect",
        "relay/outbound/queue/enqueue.py",
        '    params |= {"key": key, "key_hash"',
        '    key = None\n    params |= {"key": key, "key_hash"',
        "was asked for with one key",
        days="0.003",
        seed=2,
    ),
    Planted(
        "another text with the same key is answered like the first",
        "relay/outbound/queue/enqueue.py",
        "    if row is None or not row[0]:\n",
        "    if row is None:\n",
        "to another text with its key 202 was said",
        days="0.003",
    ),
    Planted(
        "what was queued is refused when asked again, for its recipient is suppressed by now",
        "relay/outbound/queue/enqueue.py",
        "              AND k.created_at >= clock_timestamp() - make_interval(",
        "              AND k.created_at < clock_timestamp() - make_interval(",
        "202 was said, and it was refused when asked for again",
        seed=26,
    ),
    Planted(
        "mail for later goes at once",
        "relay/outbound/queue/enqueue.py",
        "GREATEST(m.send_at, go.at - make_interval(",
        "GREATEST(go.at - make_interval(",
        ", and was for ",
        days="0.003",
    ),
    Planted(
        "whether mail is for later is asked of the node's clock",
        "relay/http/resources/send.py",
        "        send_at=wanted.send_at,\n",
        "        send_at=None\n"
        "        if wanted.send_at is None\n"
        "        or wanted.send_at <= __import__('relay.chance').chance.utc_now()\n"
        "        else wanted.send_at,\n",
        ", and was for ",
        faults="clock",
        seed=4,
    ),
    Planted(
        "mail that is to be held in doubt is sent again",
        "relay/outbound/queue/enqueue.py",
        "                    message.hold_unknown,\n                    lane,",
        "                    False,\n                    lane,",
        "was to be held, and was sent again",
        faults="peer",
        seed=2,
    ),
    Planted(
        "mail to who is suppressed is queued",
        "relay/outbound/queue/enqueue.py",
        "          ON s.address = m.address AND s.owner IN (",
        "          ON s.address = m.address AND false AND s.owner IN (",
        "202 was said, and its recipient was suppressed",
    ),
    Planted(
        "mail to who was suppressed meanwhile is delivered",
        "relay/db/migrations/0054_tls_optional.sql",
        "                       WHERE s.address = l.address\n",
        "                       WHERE s.address = l.address AND false\n",
        "and its recipient was suppressed before it was due",
    ),
    Planted(
        "a submitter is told twice",
        "relay/outbound/reporting/notices.py",
        "            queued = await enqueue(self._pool, [message], ids=[id], conn=connection)\n",
        "            queued = await enqueue(self._pool, [message], ids=[id], conn=connection)\n"
        "            await enqueue(self._pool, [message], conn=connection)\n",
        "without excuse",
        days="0.003",
        seed=2,
    ),
    Planted(
        "a report to a submitter is queued in a transaction of its own",
        "relay/outbound/reporting/notices.py",
        "            queued = await enqueue(self._pool, [message], ids=[id], conn=connection)\n",
        "            queued = await enqueue(self._pool, [message], ids=[id])\n",
        "its submitter was told 2 times",
        faults="doubt,database,kill",
        seed=6,
    ),
    Planted(
        "what is to be told to a submitter is taken out before its report is queued",
        "relay/outbound/reporting/notices.py",
        "        async with self._pool.transaction() as connection:\n",
        "        async with self._pool.connection() as connection:\n",
        "was refused, and its submitter was not told",
        faults="doubt",
        seed=6,
    ),
    Planted(
        "a submitter is told of a delay as of a failure",
        "relay/outbound/reporting/dsn.py",
        '    fields.append(f"Action: {fate.action}")\n',
        '    fields.append("Action: failed")\n',
        "its submitter was told that it failed: sent",
    ),
    Planted(
        "a blob that has expired is delivered",
        "relay/devices/postgres.py",
        "                          AND expires_at > clock_timestamp()\n",
        "",
        "s after its end",
        faults="partition,freeze",
    ),
    Planted(
        "that a blob is deleted already counts as durable",
        "relay/devices/postgres.py",
        "device_delete(%b, %b), pg_logical_emit_message(true, 'relay', '')",
        "device_delete(%b, %b), 1",
        "came again after its device had learned that it is gone",
        faults="failover",
    ),
    Planted(
        "of one blob that expired nobody is told",
        "relay/devices/receive.py",
        "        if found.count:\n",
        "        if found.count > 1:\n",
        "there are still",
        seed=2,
        days="0.003",
    ),
    Planted(
        "what a device was told of is not put down",
        "relay/devices/receive.py",
        "await self._store.told(self._key, found.mark)",
        "await self._store.told(self._key, found.count)",
        "blobs have expired, and",
        seed=2,
        days="0.003",
    ),
    Planted(
        "the youngest blob comes first",
        "relay/devices/postgres.py",
        "            WHERE up_to <= %b\n               OR position = 1\n            ORDER BY id\n",
        "            WHERE up_to <= %b\n               OR position = 1\n"
        "            ORDER BY id DESC\n",
        "and is not younger",
    ),
    Planted(
        "a device gets what is left for others",
        "relay/devices/postgres.py",
        "                        WHERE recipient = %b  -- the primary key\n",
        "                        WHERE recipient >= %b\n",
        ": went to device",
        days="0.003",
    ),
    Planted(
        "an acknowledgement deletes what is another device's",
        "relay/db/migrations/0005_devices.sql",
        "    WHERE b.recipient = d.recipient\n      AND b.id = d.id;\n$$;",
        "    WHERE b.id = d.id;\n$$;",
        "acknowledged, and its device never got it",
    ),
    Planted(
        "a blob lives as long as any",
        "relay/devices/postgres.py",
        "seconds = self._ttl if ttl is None else min(ttl, self._ttl)",
        "seconds = self._ttl",
        ": was to live for",
        days="0.003",
    ),
    Planted(
        "what is pushed together is stored in any order",
        "relay/devices/push.py",
        "                    await trio.lowlevel.cancel_shielded_checkpoint()\n",
        "",
        ": was pushed after",
    ),
    Planted(
        "the listener does not hear of blobs",
        "relay/db/channels.py",
        "    WEBHOOKS,\n    DEVICES,",
        "    WEBHOOKS,",
        "nothing is wrong, and it takes over",
        days="0.003",
    ),
    Planted(
        "that a link is used already counts as durable",
        "relay/lifecycle/consumption.py",
        "rows = await self._pool.fetch_durable(_USED, (secret,))",
        "rows = await self._pool.fetch(_USED, (secret,))",
        "its link was of no use from",
        faults="failover",
    ),
    Planted(
        "a link that is used is good",
        "relay/lifecycle/consumption.py",
        "                  AND t.consumed_at IS NULL\n"
        "                  AND t.expires_at > extract(epoch FROM clock_timestamp())\n"
        "                  AND a.status = %(status)s::relay.account_status\n"
        "                FOR NO KEY UPDATE OF a\n            )\n"
        "            UPDATE relay.tokens t\n"
        "            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))\n"
        "            FROM fit\n            WHERE t.id = fit.id\n"
        "              AND t.consumed_at IS NULL\n",
        "                  AND t.expires_at > extract(epoch FROM clock_timestamp())\n"
        "                  AND a.status = %(status)s::relay.account_status\n"
        "                FOR NO KEY UPDATE OF a\n            )\n"
        "            UPDATE relay.tokens t\n"
        "            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))\n"
        "            FROM fit\n            WHERE t.id = fit.id\n",
        "its link is good once",
    ),
    Planted(
        "the page of a link that is used offers it still",
        "relay/lifecycle/consumption.py",
        "                  AND t.consumed_at IS NULL\n"
        "                  AND t.expires_at > extract(epoch FROM clock_timestamp())\n"
        "                  AND a.status = %(status)s::relay.account_status\n            )\n",
        "                  AND t.expires_at > extract(epoch FROM clock_timestamp())\n"
        "                  AND a.status = %(status)s::relay.account_status\n            )\n",
        "its link was of no use from",
    ),
    Planted(
        "a letter leads to the page of the other kind",
        "relay/lifecycle/letters.py",
        'return f"{self._base}{action.path}?token=',
        'return f"{self._base}/activate?token=',
        "got a letter that is not of its token",
        days="0.003",
    ),
    Planted(
        "a letter has the code of the last one",
        "relay/lifecycle/token_mailer.py",
        "                    code=row.code,\n",
        "                    code=rows[0].code[::-1],\n",
        "got a letter that is not of its token",
        days="0.003",
    ),
    Planted(
        "another letter ends the links of those before",
        "relay/db/migrations/0004_lifecycle.sql",
        "    INSERT INTO relay.tokens (account, action) VALUES (account, action) RETURNING",
        "    UPDATE relay.tokens t SET expires_at = 0 WHERE t.account = account;\n"
        "    INSERT INTO relay.tokens (account, action) VALUES (account, action) RETURNING",
        "got a letter whose token there is not",
    ),
    Planted(
        "of two who use a link at once both hear that it was good",
        "relay/lifecycle/consumption.py",
        "                FOR NO KEY UPDATE OF a\n            )\n"
        "            UPDATE relay.tokens t\n"
        "            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))\n"
        "            FROM fit\n            WHERE t.id = fit.id\n"
        "              AND t.consumed_at IS NULL\n",
        "            )\n"
        "            UPDATE relay.tokens t\n"
        "            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))\n"
        "            FROM fit\n            WHERE t.id = fit.id\n",
        "its link is good once",
    ),
    Planted(
        "a link is good after its end",
        "relay/lifecycle/consumption.py",
        "                  AND t.expires_at > extract(epoch FROM clock_timestamp())\n"
        "                  AND a.status = %(status)s::relay.account_status\n"
        "                FOR NO KEY UPDATE OF a\n            )\n"
        "            UPDATE relay.tokens t\n"
        "            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))\n"
        "            FROM fit\n            WHERE t.id = fit.id\n"
        "              AND t.consumed_at IS NULL\n"
        "              AND t.expires_at > extract(epoch FROM clock_timestamp())\n",
        "                  AND a.status = %(status)s::relay.account_status\n"
        "                FOR NO KEY UPDATE OF a\n            )\n"
        "            UPDATE relay.tokens t\n"
        "            SET consumed_at = floor(extract(epoch FROM clock_timestamp()))\n"
        "            FROM fit\n            WHERE t.id = fit.id\n"
        "              AND t.consumed_at IS NULL\n",
        ", after its end",
    ),
    Planted(
        "a letter goes out after its token's end",
        "relay/db/migrations/0054_tls_optional.sql",
        "                   OR t.expires_at <= extract(epoch FROM clock_timestamp()) AS over,",
        "                   OR false AS over,",
        ": its letter came",
        faults="peer",
    ),
    Planted(
        "the end of a suspension activates",
        "relay/db/migrations/0004_lifecycle.sql",
        "        IF OLD.activated_at IS NULL THEN\n",
        "        IF false THEN\n",
        ": is active, and nobody activated it",
    ),
    Planted(
        "a link that was refused for now stays refused",
        "relay/lifecycle/consumption.py",
        "            await self._confirm(verified.secret)\n",
        "            self.remember(verified.secret, 900)\n",
        ": its link was refused at",
    ),
    Planted(
        "an account may use its link while it is suspended",
        "relay/lifecycle/consumption.py",
        "                  AND a.status = %(status)s::relay.account_status\n"
        "                FOR NO KEY UPDATE OF a\n",
        "                  AND (a.status = %(status)s::relay.account_status"
        " OR a.status = 'suspended')\n"
        "                FOR NO KEY UPDATE OF a\n",
        ", while it was suspended",
        days="0.003",
    ),
    Planted(
        "a wait outlasts its mailbox",
        "relay/http/feeds/following_mail.py",
        "    return math.inf if expires_in is None else expires_in + _SLACK",
        "    return math.inf if expires_in is None else expires_in + 60",
        "outlasts it",
        days="0.003",
    ),
    Planted(
        "a wait shows the mail of a mailbox that is over",
        "relay/mailboxes/arrivals.py",
        """            ) e ON true
            WHERE b.id = %(mailbox)s
              AND {LIVE}
            \"\"\",  # noqa: S608 - constants of ours only
            {"step": 0,""",
        """            ) e ON true
            WHERE b.id = %(mailbox)s
            \"\"\",  # noqa: S608 - constants of ours only
            {"step": 0,""",
        "a wait outlasts it",
        days="0.003",
    ),
    Planted(
        "a page of a list begins one too late",
        "relay/mailboxes/messages.py",
        "        return Page(items, _cursor(last.received_at, last.id))\n\n    async def whole_",
        "        last, _ = entry_of(rows[limit])\n"
        "        return Page(items, _cursor(last.received_at, last.id))\n\n    async def whole_",
        "and a list does not show it",
        days="0.006",
    ),
    Planted(
        "a mailbox that was deleted is welcome at RCPT",
        "relay/db/migrations/0021_lookups.sql",
        "CASE WHEN b.is_active AND b.expires_at > clock_timestamp() THEN",
        "CASE WHEN b.expires_at > clock_timestamp() THEN",
        "which was over",
        seed=2,
    ),
    Planted(
        "mail that nobody has read is not deleted",
        "relay/mailboxes/messages.py",
        "              AND m.mailbox_id = b.id\n",
        "              AND m.mailbox_id = b.id\n              AND m.is_read\n",
        "is there, and was not found",
        days="0.003",
    ),
    Planted(
        "a claim leaves the fence as it was",
        "relay/db/migrations/0054_tls_optional.sql",
        "        SET token = d.token + 1,\n            attempt = d.attempt + (NOT",
        "        SET token = d.token,\n            attempt = d.attempt + (NOT",
        "without excuse",
        seed=4,
        faults="freeze,peer",
        days="0.02",
    ),
)
