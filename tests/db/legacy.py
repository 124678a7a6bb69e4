"""What a relay of some release leaves in a database: for tests of the way from there to here.

`python -m tests.db.legacy VERSION` writes `released/VERSION.sql`.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import psycopg
import trio

from relay.db.cluster import binaries
from relay.db.migrate import migrate, migrations
from tests.db.cluster import Cluster

RELEASED = Path(__file__).parent / "released"


@dataclass(frozen=True)
class Heritage:
    """What a user has once migration `since` is there; `look` must go on giving `found`."""

    since: int
    make: str
    look: str
    found: tuple[object, ...]


HERITAGE = (
    Heritage(
        1,
        """
        INSERT INTO relay.mailboxes (address, expires_at)
        VALUES ('kept@relay.localhost', '2099-01-01T00:00:00Z'),
               ('over@relay.localhost', '2020-01-01T00:00:00Z');
        INSERT INTO relay.messages (mailbox_id, reverse_path, raw_email)
        SELECT id, 'a@example.org', convert_to(E'Subject: kept\\r\\n\\r\\n\\u00fc\\r\\n', 'UTF8')
        FROM relay.mailboxes
        """,
        """
        SELECT count(*), min(size), min(convert_from(raw_email, 'UTF8')),
               count(*) FILTER (WHERE expires_at > '2098-01-01')
        FROM relay.messages AS m
        JOIN relay.mailboxes AS b ON b.id = m.mailbox_id
        """,
        (2, 21, "Subject: kept\r\n\r\nü\r\n", 1),
    ),
    Heritage(
        2,
        """
        INSERT INTO relay.suppressions (address, reason) VALUES ('no@example.org', 'asked');
        INSERT INTO relay.senders (address, upstream) VALUES ('s@example.org', 'smtps://mail.example:465');
        SELECT relay.send('s@example.org', 'ada@example.org', 'Later', 'It is on its way.',
                          send_at => '2099-01-01T00:00:00Z', idempotency_key => 'one');
        """,
        """
        SELECT count(*), min(subject), min(status::text),
               (SELECT count(*) FROM relay.suppressions WHERE reason = 'asked'),
               (SELECT count(*) FROM relay.senders),
               (SELECT relay.send('s@example.org', 'ada@example.org', 'Later', 'It is on its way.',
                                  send_at => '2099-01-01T00:00:00Z', idempotency_key => 'one')
                = min(id::text)::uuid)
        FROM relay.outbound_messages
        WHERE subject = 'Later'
        """,
        (1, "Later", "queued", 1, 1, True),
    ),
    Heritage(
        3,
        """
        INSERT INTO relay.webhooks (url, events)
        VALUES ('https://a.example/', '{message.failed}')
        """,
        "SELECT count(*), min(url) FROM relay.webhooks WHERE url = 'https://a.example/'",
        (1, "https://a.example/"),
    ),
    Heritage(
        4,
        "INSERT INTO relay.accounts (email, login) VALUES ('ada@example.org', 'ada')",
        """
        SELECT count(*), min(a.login), min(t.action::text)
        FROM relay.accounts AS a
        JOIN relay.tokens AS t ON t.account = a.id
        """,
        (1, "ada", "activation"),
    ),
    Heritage(
        5,
        """
        INSERT INTO relay.device_inbox (recipient, envelope, expires_at)
        VALUES (decode(repeat('ab', 32), 'hex'), 'blob', '2099-01-01T00:00:00Z')
        """,
        """
        SELECT count(*), convert_from(min(envelope::text)::bytea, 'UTF8')
        FROM relay.device_inbox
        WHERE recipient = decode(repeat('ab', 32), 'hex')
        """,
        (1, "blob"),
    ),
    Heritage(
        6,
        """
        INSERT INTO relay.api_keys (owner, scopes, token_hash)
        VALUES ('shop', '{send,accounts}', decode(repeat('cd', 32), 'hex'))
        """,
        "SELECT count(*), min(scopes::text) FROM relay.api_keys WHERE owner = 'shop'",
        (1, "{send,accounts}"),
    ),
    Heritage(
        7,
        """
        SELECT relay.send('s@example.org', 'ada@example.org', 'In time', 'Before it is too late.',
                          send_at => '2098-01-01T00:00:00Z', not_after => '2099-01-01T00:00:00Z')
        """,
        """
        SELECT count(*), min(o.subject), min(o.not_after) = '2099-01-01T00:00:00Z'
        FROM relay.outbound_messages AS o
        WHERE o.subject = 'In time'
        """,
        (1, "In time", True),
    ),
    Heritage(
        8,
        """
        INSERT INTO relay.webhooks (url, events)
        VALUES ('https://b.example/', '{account.activated,account.recovered}')
        """,
        "SELECT count(*), min(events::text) FROM relay.webhooks WHERE url = 'https://b.example/'",
        (1, "{account.activated,account.recovered}"),
    ),
    Heritage(
        9,
        "SELECT 1",  # the mail of the first part still waits to be parsed
        """
        SELECT count(*), min(u.size), bool_and(u.mailbox_id = m.mailbox_id)
        FROM relay.unsummarised AS u
        JOIN relay.messages AS m ON m.id = u.message_id
        """,
        (2, 21, True),
    ),
    Heritage(
        10,
        """
        SELECT FROM relay.device_put(
            ARRAY[decode(repeat('ac', 32), 'hex')], ARRAY['brief'::bytea], ARRAY[1e9], 10, 1000
        )
        """,
        """
        SELECT count(*), bool_and(expires_at < now() + make_interval(secs => 1e9))
        FROM relay.device_inbox
        WHERE recipient = decode(repeat('ac', 32), 'hex')
        """,
        (1, True),
    ),
    Heritage(
        11,
        """
        INSERT INTO relay.page_sessions (kind, token_hash, cookie_hash, page_key_hash, expires_at)
        SELECT 'mailbox', h, h, h, '2099-01-01T00:00:00Z'
        FROM decode(repeat('ab', 32), 'hex') AS h
        """,
        "SELECT count(*), min(kind) FROM relay.page_sessions",
        (1, "mailbox"),
    ),
    Heritage(
        12,
        """
        SELECT relay.send('s@example.org', 'ada@example.org', 'Later', 'It is on its way.',
                          send_at => '2099-01-01T00:00:00Z', idempotency_key => 'one');
        """,
        "SELECT count(*), min(key) FROM relay.outbound_keys",
        (1, "one"),
    ),
    Heritage(
        13,
        """
        INSERT INTO relay.api_keys (owner, scopes, token_hash, kind, senders, expires_at)
        VALUES ('agent', '{read}', decode(repeat('ef', 32), 'hex'), 'mcp', '{own}', '2099-01-01')
        """,
        """
        SELECT count(*), min(senders::text), min(expires_at) = '2099-01-01'
        FROM relay.api_keys
        WHERE kind = 'mcp'
        """,
        (1, "{own}", True),
    ),
    Heritage(
        14,
        """
        INSERT INTO relay.plans (name, default_ttl_minutes, max_ttl_minutes, max_messages)
        VALUES ('tiny', 5, 5, 3);
        """,
        """
        SELECT max_messages, max_bytes, (SELECT sum(messages)::integer FROM (
            SELECT messages FROM relay.mailbox_usage UNION ALL
            SELECT messages FROM relay.usage_changes) counted)
        FROM relay.plans WHERE name = 'tiny'
        """,
        (3, None, 2),
    ),
    Heritage(
        15,
        """
        SELECT relay.send('s@example.org', 'bob@example.org', 'Held', 'Until somebody looks.',
                          send_at => '2098-01-01T00:00:00Z', not_after => '2099-01-01T00:00:00Z')
        """,
        "SELECT count(*), min(subject) FROM relay.outbound_messages WHERE subject = 'Held'",
        (1, "Held"),
    ),
    Heritage(
        16,
        """
        INSERT INTO relay.outbound_due (id, lane, run_at, priority, send_at)
        VALUES ('00000000-0000-7000-8000-000000000016', 16, 'infinity', 1, '2099-01-01T00:00:00Z');
        """,
        """
        SELECT send_at = '2099-01-01T00:00:00Z', run_at = 'infinity'
        FROM relay.outbound_due WHERE id = '00000000-0000-7000-8000-000000000016'
        """,
        (True, True),
    ),
    Heritage(
        17,  # a search finds what it found: it makes its chunks by itself
        """
        INSERT INTO relay.summaries (message_id, mailbox_id, headers)
        SELECT m.id, m.mailbox_id, '[["Subject", "kept"]]'
        FROM relay.messages AS m
        JOIN relay.mailboxes AS b ON b.id = m.mailbox_id
        WHERE b.address = 'over@relay.localhost'
        """,
        """
        SELECT (SELECT count(*) FROM relay.search_chunks),
               relay.filter_holds(decode(repeat('ff', 1024), 'hex'), '{5}'),
               s.headers, s.attachments, s.links
        FROM relay.summaries AS s
        WHERE s.headers IS NOT NULL
        """,
        (0, True, [["Subject", "kept"]], [], []),
    ),
    Heritage(
        18,
        """
        INSERT INTO relay.summaries (message_id, mailbox_id, details)
        SELECT m.id, m.mailbox_id, '{"headers":[["Subject","kept"]]}'
        FROM relay.messages AS m
        JOIN relay.mailboxes AS b ON b.id = m.mailbox_id
        WHERE b.address = 'kept@relay.localhost'
        """,
        """
        SELECT count(*), min(details), min(headers::text), min(links::text)
        FROM relay.summaries
        WHERE details IS NOT NULL
        """,
        (1, '{"headers":[["Subject","kept"]]}', None, None),
    ),
    Heritage(
        19,
        """
        INSERT INTO relay.mailboxes (address, owner_type, expires_at, captured_at)
        VALUES ('captured@shop.example', 'capture', '2099-01-01T00:00:00Z', '2098-12-31T00:00:00Z')
        """,
        """
        SELECT count(*), min(owner_type::text), min(captured_at)::date::text
        FROM relay.mailboxes
        WHERE captured_at IS NOT NULL
        """,
        (1, "capture", "2098-12-31"),
    ),
    Heritage(
        20,
        """
        INSERT INTO relay.outbound_contents (id, sender, subject, blob, size, tag)
        VALUES ('00000000-0000-7000-8000-000000000020', '', 'Whole', 'Subject: Whole', 14, 'shop')
        """,
        """
        SELECT count(*), min(convert_from(blob, 'UTF8')), min(tag)
        FROM relay.outbound_contents
        WHERE tag IS NOT NULL
        """,
        (1, "Subject: Whole", "shop"),
    ),
    Heritage(
        21,
        """
        INSERT INTO relay.mailboxes (address, plan, expires_at)
        VALUES ('found@relay.localhost', 'pro', '2099-01-01T00:00:00Z')
        """,
        """
        SELECT address, is_full
        FROM relay.find_mailboxes('{found@relay.localhost,nobody@relay.localhost}')
        """,
        ("found@relay.localhost", False),
    ),
    Heritage(
        22,
        """
        INSERT INTO relay.mailboxes (address, owner_id, expires_at)
        VALUES ('found-too@relay.localhost', gen_random_uuid(), '2099-01-01T00:00:00Z')
        """,
        """
        SELECT address, is_full
        FROM relay.find_mailboxes('{found-too@relay.localhost}')
        """,
        ("found-too@relay.localhost", False),
    ),
    Heritage(
        23,
        """
        UPDATE relay.summaries
        SET tags = relay.tags_of('{kept,kept}')
        WHERE headers IS NULL
        """,
        """
        SELECT array_agg(DISTINCT tags::text), relay.sender_of('{"headers":[["From","Ada"]]}'),
               relay.settled_seq() >= max(seq)
        FROM relay.summaries
        WHERE tags IS NOT NULL
        """,
        (["{kept}"], "Ada", True),
    ),
    Heritage(
        24,
        "SELECT",
        "SELECT count(*), min(last_seq) FROM relay.common_chunks",
        (0, None),
    ),
    Heritage(
        25,
        """
        UPDATE relay.messages
        SET client = '192.0.2.1', helo = 'mx.example.org'
        WHERE recipient IS NULL
        """,
        """
        SELECT count(*) > 0, min(host(client)), min(helo), count(*) FILTER (WHERE helo IS NULL)
        FROM relay.messages
        WHERE client IS NOT NULL
        """,
        (True, "192.0.2.1", "mx.example.org", 0),
    ),
    Heritage(
        26,
        "SELECT",  # the tags of 23
        """
        SELECT min(tag), max(tag),
               count(*) = (SELECT count(*) FROM relay.summaries WHERE tags IS NOT NULL)
        FROM relay.tagged
        """,
        ("kept", "kept", True),
    ),
    Heritage(
        27,
        "UPDATE relay.summaries SET from_name = 'Ada Lovelace' WHERE tags IS NOT NULL",
        """
        SELECT min(from_name), count(from_name) = count(*) FILTER (WHERE tags IS NOT NULL)
        FROM relay.summaries
        """,
        ("Ada Lovelace", True),
    ),
    Heritage(
        28,
        """
        INSERT INTO relay.mailboxes (address, said, expires_at)
        VALUES ('"a b"@xn--fa-hia.example', '"a b"@faß.example', '2020-01-01T00:00:00Z')
        """,
        """
        SELECT min(said), min(relay.in_unicode(address)), count(*)
        FROM relay.mailboxes
        WHERE said IS NOT NULL
        """,
        ('"a b"@faß.example', '"a b"@faß.example', 1),
    ),
    Heritage(
        29,
        """
        INSERT INTO relay.history (at, received, sent, failed, bounced, waiting)
        VALUES ('2098-12-31T00:00:00Z', 5, 4, 3, 2, 1)
        """,
        "SELECT received, sent, failed, bounced, waiting, oldest_due_seconds FROM relay.history",
        (5, 4, 3, 2, 1, None),
    ),
    Heritage(
        30,
        "SELECT",
        """
        SELECT count(*)
        FROM pg_indexes
        WHERE schemaname = 'relay'
          AND indexname ~ '_chunks_newest$'
        """,
        (2,),
    ),
    Heritage(
        31,
        "UPDATE relay.api_keys SET last_used_at = '2026-01-01T00:00:00Z' WHERE owner = 'shop'",
        "SELECT count(*), min(last_used_at) = '2026-01-01T00:00:00Z' FROM relay.api_keys",
        (2, True),
    ),
    Heritage(
        32,
        "SELECT",
        """
        SELECT count(*)
        FROM pg_indexes
        WHERE schemaname = 'relay'
          AND indexname ~ '^mailboxes_owner'
          AND indexdef ~ 'captured_at IS NULL'
        """,
        (2,),
    ),
    Heritage(
        33,
        """
        INSERT INTO relay.outbound_tries (message_id, at, attempt, outcome, phase, peer, tls)
        VALUES (relay.uuidv7(), '2098-12-31T00:00:00Z', 1, 'queued', 'rcpt',
                'mx.example[192.0.2.1]:25', 'TLSv1.3');
        INSERT INTO relay.outbound_log (id, finished_at, token, attempt, code, status, phase, peer,
                                        reply)
        VALUES (relay.uuidv7(), '2098-12-31T00:00:00Z', 1, 1, 250, 'sent', 'dot', 'mx.example:25',
                'Ok: queued as 4bX')
        """,
        """
        SELECT array_agg(ARRAY[peer, tls, reply] ORDER BY peer)
        FROM relay.outbound_attempts
        WHERE peer IS NOT NULL
        """,
        (
            [
                ["mx.example:25", None, "250 Ok: queued as 4bX"],
                ["mx.example[192.0.2.1]:25", "TLSv1.3", None],
            ],
        ),
    ),
    Heritage(
        34,
        """
        UPDATE relay.messages
        SET is_read = true
        WHERE mailbox_id = (SELECT id FROM relay.mailboxes WHERE address = 'kept@relay.localhost')
        """,
        """
        SELECT sum(messages)::integer, sum(was_read)::integer,
               (SELECT count(*) FROM relay.messages WHERE is_read)
        FROM (SELECT messages, was_read FROM relay.mailbox_usage UNION ALL
              SELECT messages, was_read FROM relay.usage_changes) counted
        """,
        (2, 1, 1),
    ),
    Heritage(
        35,
        """
        INSERT INTO relay.dkim_keys (domain, selector, algorithm, state, record, private_key,
                                     key_id, activated_at, retired_at)
        VALUES ('shop.example', 'new', 'rsa-sha256', 'active', 'v=DKIM1; k=rsa; p=AAAA', '\\x01',
                '\\x02', now(), NULL),
               ('shop.example', 'old', 'rsa-sha256', 'retired', 'v=DKIM1; k=rsa; p=BBBB', NULL,
                NULL, now(), now())
        """,
        """
        SELECT array_agg(ARRAY[selector, state, record, private_key::text] ORDER BY selector)
        FROM relay.dkim_keys
        """,
        (
            [
                ["new", "active", "v=DKIM1; k=rsa; p=AAAA", "\\x01"],
                ["old", "retired", "v=DKIM1; k=rsa; p=BBBB", None],
            ],
        ),
    ),
    Heritage(
        36,
        """
        INSERT INTO relay.returns (message_id, raw) VALUES (relay.uuidv7(), '\\x01');
        INSERT INTO relay.outbound_reports (message_id, attempt, kind, owner, address, is_full)
        VALUES (relay.uuidv7(), 1, 'bounced', relay.uuidv7(), 'full@example.org', true);
        INSERT INTO relay.suppressions (address, owner, cause)
        VALUES ('early@example.org', '01000000-0000-7000-8000-000000000001', 'unsubscribed')
        """,
        """
        SELECT (SELECT cause FROM relay.suppressions WHERE address = 'no@example.org'),
               (SELECT count(*) FROM relay.returns), (SELECT count(*) FROM relay.outbound_reports)
        """,
        ("manual", 1, 1),
    ),
    # What waits since before 37 keeps its lane until it is put back, and is delivered from there.
    Heritage(
        37,
        """
        SELECT relay.send('S@example.org', 'ada@example.org', 'Routed', 'By its own upstream.',
                          send_at => '2097-01-01T00:00:00Z')
        """,
        """
        SELECT count(*),
               bool_and(d.lane = relay.outbound_lane(l.owner, l.domain, s.id)),
               bool_and((SELECT o.lane = relay.outbound_lane(l.owner, l.domain)
                         FROM relay.outbound_due AS o
                         JOIN relay.outbound_messages AS m ON m.id = o.id
                         WHERE m.subject = 'In time'))
        FROM relay.outbound_due AS d
        JOIN relay.outbound_letters AS l ON l.id = d.id
        JOIN relay.outbound_contents AS c ON c.id = l.content_id
        JOIN relay.senders AS s ON s.address = 's@example.org'
        WHERE c.subject = 'Routed'
        """,
        (1, True, True),
    ),
    # That nothing is changed of messages is no less a statement that is announced.
    Heritage(
        38,
        "UPDATE relay.messages SET is_read = is_read",
        """
        SELECT array_agg(tgname::text ORDER BY tgname)
        FROM pg_trigger
        WHERE tgfoid = 'relay.messages_changed'::regproc
        """,
        (["messages_changed_delete", "messages_changed_update", "summaries_changed"],),
    ),
    Heritage(
        39,
        """
        INSERT INTO relay.mta_sts_policies (domain, policy_id, mode, hosts, max_age, expires_at)
        VALUES ('shop.example', '1', 'enforce', '{mx.shop.example,*.example}', 86400,
                now() + interval '1 day')
        """,
        "SELECT policy_id, mode, hosts FROM relay.mta_sts_policies WHERE domain = 'shop.example'",
        ("1", "enforce", ["mx.shop.example", "*.example"]),
    ),
    Heritage(
        40,
        """
        INSERT INTO relay.tls_results (day, domain, key, policy, fault, host, address, count)
        VALUES ('2026-11-25', 'shop.example', '\\x01',
                '{"type": "no-policy-found", "strings": [], "hosts": []}', '', 'mx.shop.example',
                '192.0.2.1', 7);
        INSERT INTO relay.tls_reports (day, domain, id, due_at)
        VALUES ('2026-11-25', 'shop.example', '00000000-0000-0000-0000-000000000001', now())
        """,
        """
        SELECT r.host, r.count::integer, p.mailed
        FROM relay.tls_results r JOIN relay.tls_reports p USING (day, domain)
        """,
        ("mx.shop.example", 7, False),
    ),
    Heritage(
        41,
        """
        INSERT INTO relay.outbound_contents (id, sender, subject, blob, ret, envid, require_tls)
        VALUES ('01a00000-0000-7000-8000-000000000041', 'a@x.example', 's', '\\x0d0a', 'HDRS', 'q',
                true);
        INSERT INTO relay.outbound_letters (id, content_id, owner, recipient, address, domain,
                                            priority, notify, orcpt)
        VALUES ('01a00000-0000-7000-8000-000000000041', '01a00000-0000-7000-8000-000000000041',
                '00000000-0000-0000-0000-000000000000', 'b@y.example', 'b@y.example', 'y.example',
                1, 2, 'rfc822;c@y.example');
        INSERT INTO relay.outbound_log (id, token, attempt, status)
        VALUES ('01a00000-0000-7000-8000-000000000041', 1, 1, 'bounced')
        """,
        """
        SELECT (SELECT array_agg(action) FROM relay.outbound_notices),
               (SELECT count(*) FROM relay.outbound_letters WHERE notify IS NOT NULL),
               (SELECT count(*) FROM relay.outbound_watch)
        """,
        (["failed"], 1, 1),
    ),
    Heritage(
        42,
        """
        INSERT INTO relay.outbound_shaping (receiver, kind, factor, domain, reason, until)
        VALUES ('google', 'slowed', 0.25, 'shop.example', '421 4.7.28', now() + interval '1 day')
        """,
        "SELECT kind, factor, domain, reason FROM relay.outbound_shaping WHERE receiver = 'google'",
        ("slowed", 0.25, "shop.example", "421 4.7.28"),
    ),
    # Who unsubscribed by SQL at the time of 36 did so then; what was suppressed by hand stays that.
    Heritage(
        43,
        """
        INSERT INTO relay.suppressions (address, owner, unsubscribed_by, cause)
        VALUES ('Left@example.org', '01000000-0000-7000-8000-000000000001',
                '02000000-0000-7000-8000-000000000002', 'unsubscribed')
        """,
        """
        SELECT array_agg(ARRAY[cause, unsubscribed_by::text] ORDER BY address),
               bool_and((cause = 'unsubscribed') = (unsubscribed_at IS NOT NULL)),
               bool_and(unsubscribed_at = created_at) FILTER (WHERE address = 'early@example.org')
        FROM relay.suppressions
        """,
        (
            [
                ["unsubscribed", None],
                ["unsubscribed", "02000000-0000-7000-8000-000000000002"],
                ["manual", None],
            ],
            True,
            True,
        ),
    ),
    Heritage(
        44,
        "INSERT INTO relay.notifications (id) VALUES ('msg_1')",
        "SELECT array_agg(id) FROM relay.notifications",
        (["msg_1"],),
    ),
    # Of what was queued before nobody knows since when it is due; its next claim says it, as the
    # first does of what is new (tests/outbound/queue/test_store.py).
    Heritage(
        45,
        """
        UPDATE relay.outbound_due SET first_due_at = run_at
        WHERE id = (SELECT id FROM relay.outbound_messages WHERE subject = 'Later')
        """,
        """
        SELECT array_agg(d.first_due_at = '2099-01-01T00:00:00Z' ORDER BY m.subject)
        FROM relay.outbound_due d
        JOIN relay.outbound_messages m ON m.id = d.id
        WHERE m.subject IN ('Later', 'Routed')
        """,
        ([True, None],),
    ),
    Heritage(
        46,
        "SELECT",
        """
        SELECT bool_and(s.owner = l.owner)
        FROM relay.outbound_survey() s
        JOIN relay.outbound_due d ON d.lane = s.lane AND d.priority = s.priority
        JOIN relay.outbound_letters l ON l.id = d.id
        """,
        (True,),
    ),
    Heritage(
        47,
        """
        SELECT relay.send('old@example.org', 'a@old.example', 'Old', 'text');
        UPDATE relay.outbound_due SET run_at = now() - interval '6 d'
        WHERE id = (SELECT id FROM relay.outbound_messages WHERE subject = 'Old');
        SELECT relay.outbound_give_up(ARRAY[d.lane], 432000, true, 'connect: no answer', 10)
        FROM relay.outbound_due d
        JOIN relay.outbound_messages m ON m.id = d.id
        WHERE m.subject = 'Old'
        """,
        "SELECT status FROM relay.outbound_messages WHERE subject = 'Old'",
        ("failed",),
    ),
    Heritage(
        48,
        "SELECT",
        """
        SELECT count(*), count(captured_from)
        FROM relay.mailboxes
        WHERE captured_at IS NOT NULL
        """,
        (1, 0),
    ),
    # A relay of before claims by the function that it knows.
    Heritage(
        49,
        "SELECT",
        """
        SELECT count(*)
        FROM relay.outbound_claim(gen_random_uuid(), 60, ARRAY[1]::bigint[], ARRAY[1]::smallint[],
                                  ARRAY['2026-01-01'::timestamptz], ARRAY[0], 10, 3, 1, false)
        """,
        (0,),
    ),
    Heritage(
        50,
        "UPDATE relay.messages SET is_read = is_read",
        """
        SELECT array_agg(tgname::text ORDER BY tgname)
        FROM pg_trigger
        WHERE tgfoid = 'relay.messages_changed'::regproc
        """,
        (["messages_changed_delete", "messages_changed_update", "summaries_changed"],),
    ),
    Heritage(
        51,
        """
        INSERT INTO relay.outbound_shaping (receiver, kind, domain, reason, until, rule)
        VALUES ('yahoo', 'suspended', 'shop.example', '421', now() + interval '1 day', 'yahoo:7')
        """,
        "SELECT array_agg(rule ORDER BY receiver) FROM relay.outbound_shaping",
        (["", "yahoo:7"],),
    ),
    Heritage(
        52,
        "UPDATE relay.mailboxes SET expires_at = expires_at + interval '1 second' WHERE is_active",
        """
        SELECT array_agg(tgname::text ORDER BY tgname)
        FROM pg_trigger
        WHERE tgfoid IN ('relay.mailboxes_announce_update'::regproc,
                         'relay.mailboxes_announce_delete'::regproc)
        """,
        (["mailboxes_announce_delete", "mailboxes_announce_update"],),
    ),
    # What a relay of before counted has none, nor has what it counts beside this one.
    Heritage(
        53,
        """
        INSERT INTO relay.tls_results (day, domain, key, policy, fault, host, address, count)
        VALUES ('2026-11-25', 'source.example', '\\x01',
                '{"type": "no-policy-found", "strings": [], "hosts": []}', '', 'mx.source.example',
                '192.0.2.1', 7)
        """,
        "SELECT source FROM relay.tls_results WHERE domain = 'source.example'",
        ("",),
    ),
    # Without anything asked, it was false: what asks for nothing is null now.
    Heritage(
        54,
        "SELECT",
        """
        SELECT count(*)
        FROM relay.outbound_claim(gen_random_uuid(), 60, ARRAY[1]::bigint[], ARRAY[1]::smallint[],
                                  ARRAY['2026-01-01'::timestamptz], ARRAY[0], 10, 3, 1, false,
                                  now())
        """,
        (0,),
    ),
    # What no partition covers is stored all the same.
    Heritage(
        55,
        """
        INSERT INTO relay.outbound_tries (message_id, at, attempt, outcome)
        VALUES ('00000000-0000-7000-8000-000000000055', '2090-01-01T00:00:00Z', 1, 'queued')
        """,
        "SELECT count(*) FROM relay.outbound_tries WHERE message_id::text LIKE '%0055'",
        (1,),
    ),
)


def settle(dsn: str, upto: int, directory: Path, since: int = 0) -> None:
    """Bring a database to migration `upto`, with the heritage of that time in it.

    Each part is made as soon as its migration is there, as it was in real life.  The database is
    empty, or was brought to migration `since` with the same directory.
    """
    for migration in migrations():
        if not since < migration.number <= upto:
            continue
        (directory / migration.name).write_text(migration.sql)
        trio.run(functools.partial(migrate, dsn, directory))
        with psycopg.connect(dsn, autocommit=True) as connection:
            for part in HERITAGE:
                if part.since == migration.number:
                    connection.execute(part.make.encode())


def inherited(dsn: str, upto: int) -> dict[int, tuple[tuple[object, ...], tuple[object, ...]]]:
    """Return what is found of each part and what should be, for parts up to `upto` that differ."""
    wrong = {}
    with psycopg.connect(dsn, autocommit=True) as connection:
        for part in HERITAGE:
            if part.since <= upto:
                found = connection.execute(part.look.encode()).fetchone()
                if found != part.found:
                    wrong[part.since] = (found or (), part.found)
    return wrong


def dump(dsn: str, *, schema_only: bool = False) -> str:
    """Return the schema `relay` as SQL, with its data or without."""
    done = subprocess.run(
        [
            binaries() / "pg_dump", f"--dbname={dsn}", "--schema=relay", "--no-owner",
            "--no-privileges", *(["--schema-only"] if schema_only else []),
        ],
        check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    # A dump carries a random key for psql, and settings of newer servers.
    left_out = ("\\restrict", "\\unrestrict", "SET transaction_timeout")
    return "".join(
        line for line in done.stdout.splitlines(keepends=True) if not line.startswith(left_out)
    )


def load(dsn: str, text: str) -> None:
    """Run a dump in an empty database."""
    subprocess.run(
        [binaries() / "psql", "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={dsn}"],
        input=text, check=True, capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def main(version: str) -> None:
    """Write the dump of a release."""
    target = RELEASED / f"{version}.sql"
    if target.exists():
        sys.exit(f"{target} exists: a release is dumped once.")
    cluster = Cluster(binaries())
    try:
        cluster.start()
        dsn = cluster.dsn(cluster.new_database())
        with tempfile.TemporaryDirectory() as folder:
            settle(dsn, migrations()[-1].number, Path(folder))
        target.write_text(dump(dsn))
    finally:
        cluster.remove()
    print(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
