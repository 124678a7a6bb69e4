// Inboxes and messages, against the relay at RELAY_URL.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createSocketServer } from "node:net";
import { test } from "node:test";
import { inspect } from "node:util";
import { gzipSync } from "node:zlib";
import {
  NoSuchLink,
  NotDelivered,
  Refused,
  Relay,
  RelayError,
  UnexpectedMail,
  Unreachable,
  VERSION,
  WaitTimeout,
} from "relay-client";
import { mistype, sendAs } from "./refusals.mjs";

/** @param {string} name */
const inner = (name) => import(new URL(`../dist/esm/${name}.js`, import.meta.url).href);
const { arrivedAt, inboxOf, smtpServerOf } = await inner("fixtures");
const { MessageData } = await inner("records");
const { inALine, quoted, visible } = await inner("text");
const { concerning, isNear } = await inner("waiting");

const relay = new Relay();
const cases = JSON.parse(readFileSync(new URL("../../cases.json", import.meta.url), "utf-8"));
const LINK = "https://id.shop.example/reset?token=1";

/** @param {(inbox: import("relay-client").Inbox) => Promise<void>} body */
const withInbox = (body) => async () => {
  const inbox = await relay.inbox({ ttl: 10 });
  try {
    await body(inbox);
  } finally {
    await inbox.close();
  }
};

/**
 * @param {string} to
 * @param {Partial<import("relay-client").NewMessage>} [given]
 */
async function deliver(to, given = {}) {
  const text = `Your code is 271828.\n${LINK}\n`;
  const [sent] = await relay.send({
    from: "Shop <a@shop.example>",
    to,
    subject: "Reset",
    text,
    ...given,
  });
  await sent?.wait("sent");
}

/** @param {import("node:net").Server} server */
const portOf = (server) => /** @type {import("node:net").AddressInfo} */ (server.address()).port;

/** @param {Uint8Array | undefined} bytes */
const text = (bytes) => new TextDecoder().decode(bytes);

test(
  "a message has its parts",
  withInbox(async (inbox) => {
    await deliver(inbox.address, { attachments: [{ filename: "invoice.pdf", content: "%PDF" }] });
    const message = await inbox.wait({ subject: "reset", sender: "SHOP.EXAMPLE" });
    assert.equal(message.code, "271828");
    assert.equal(message.sender, "a@shop.example");
    assert.equal(message.to, inbox.address);
    assert.equal(message.subject, "Reset");
    assert.equal(message.headers.get("subject"), "Reset");
    assert.equal(message.headers.get("Subject"), "Reset");
    assert.ok(message.headers.has("SUBJECT") && !message.headers.has("X-None"));
    assert.equal(message.headers.get("X-None"), undefined);
    assert.ok([...message.headers].some(([name]) => name === "Message-ID"));
    assert.match(message.text ?? "", /^Your code/);
    assert.equal(message.html, null);
    assert.equal((await message.raw).length, message.size);
    assert.ok(Date.now() - message.receivedAt.getTime() < 60_000);
    assert.equal(message.attachments.length, 1);
    const [file] = message.attachments;
    assert.deepEqual(
      [file?.filename, file?.contentType, file?.size],
      ["invoice.pdf", "application/pdf", 4],
    );
    assert.equal(text(await file?.content), "%PDF");
    assert.equal(await file?.content, await file?.content);
    const checks = await message.checks();
    assert.equal(checks.dkim.result, "none");
    assert.ok(Array.isArray(checks.findings));
    const { headers, attachments } = JSON.parse(JSON.stringify(message));
    assert.deepEqual([headers.Subject, attachments[0].filename], ["Reset", "invoice.pdf"]);
    await message.delete();
    assert.deepEqual(await inbox.messages(), []);
    await message.delete(); // twice does no harm
  }),
);

test(
  "a link is found by path, host or pattern; what is like none says which there are",
  withInbox(async (inbox) => {
    await deliver(inbox.address);
    const message = await inbox.wait();
    assert.deepEqual(message.links, [LINK]);
    for (const match of [
      undefined,
      "/reset",
      "token=",
      "shop.example",
      "ID.shop.example",
      /^https/g,
      /^https/g,
    ]) {
      assert.equal(message.link(match), LINK);
    }
    for (const match of ["/id.shop", "hop.example", "example.com", /^http:/]) {
      assert.throws(
        () => message.link(match),
        (error) => {
          assert.ok(error instanceof NoSuchLink);
          assert.match(
            error.message,
            /^no link like '.*' in 'Reset'; its links:\n {2}https:\/\/id\.shop\.example\/reset/,
          );
          return true;
        },
      );
    }
  }),
);

for (const q of [undefined, "reset"]) {
  test(
    `mail is ${q === undefined ? "listed" : "found"} whole as soon as it was sent`,
    withInbox(async (inbox) => {
      /** @param {string} verb */
      const summariser = async (verb) => {
        const answer = await fetch(`${relay.url}/api/v1/supervision/summariser/${verb}`, {
          method: "POST",
          headers: { Authorization: `Bearer ${process.env.RELAY_TOKEN}` },
        });
        assert.equal(answer.status, 202);
      };
      await summariser("pause");
      try {
        await deliver(inbox.address);
        const [[found]] = await Promise.all([
          q === undefined ? inbox.messages() : inbox.search(q),
          new Promise((done) => setTimeout(done, 300)).then(() => summariser("resume")),
        ]);
        assert.deepEqual([found?.subject, found?.code], ["Reset", "271828"]);
        assert.match(found?.text ?? "", /^Your code/);
      } finally {
        await summariser("resume");
      }
    }),
  );
}

test(
  "a wait ends as the message comes; `after` leaves out what was",
  withInbox(async (inbox) => {
    await deliver(inbox.address, { subject: "One" });
    const first = await inbox.wait();
    const [second] = await Promise.all([
      inbox.wait({ after: first, timeout: 20_000 }),
      new Promise((done) => setTimeout(done, 200)).then(() =>
        deliver(inbox.address, { subject: "Two" }),
      ),
    ]);
    assert.equal(second.subject, "Two");
    assert.deepEqual(
      (await inbox.waitMany(2)).map((one) => one.id),
      [first.id, second.id],
    );
    assert.equal((await inbox.wait({ after: first.id })).id, second.id);
  }),
);

test(
  "a wait in vain says what came",
  withInbox(async (inbox) => {
    await assert.rejects(inbox.wait({ timeout: 100 }), {
      name: "WaitTimeout",
      message: "waited 0.1 s for any mail; nothing came",
    });
    await inbox.waitNone(100);
    await deliver(inbox.address, { subject: "Welcome" });
    await assert.rejects(
      inbox.wait({ subject: "Reset", sender: "bank", timeout: 100 }),
      (error) => {
        assert.ok(error instanceof WaitTimeout && error instanceof RelayError);
        assert.match(
          error.message,
          /^waited 0\.1 s for 'Reset' mail from 'bank'; 1 other came:\n {2}20\S+Z from a@shop\.example: 'Welcome'$/,
        );
        assert.equal(error.timeout, 100);
        return true;
      },
    );
    await assert.rejects(
      inbox.waitMany(3, { timeout: 100 }),
      /3 of any mail \(1 came\); nothing else came$/,
    );
    await assert.rejects(inbox.waitNone(5_000), (error) => {
      assert.ok(error instanceof UnexpectedMail);
      assert.match(error.message, /^mail came where none was to come:\n.*'Welcome'$/);
      return true;
    });
    await inbox.waitNone(100, { subject: "Reset" });
    await assert.rejects(inbox.wait({ subject: "Reset", timeout: 0 }), /waited 0 s for 'Reset'/);
    // What the type checker would find, for those who have none.
    const careless = /** @type {any} */ (inbox);
    await assert.rejects(
      careless.wait({ from: "a@shop.example" }),
      /by subject, sender and after, not 'from'/,
    );
    await assert.rejects(careless.wait("Reset"), /by subject, sender and after, by their names/);
  }),
);

test("a long wait is asked for in parts: mail that comes between two of them ends it", async () => {
  const parts = /** @type {number[]} */ ([]);
  let mailed = "";
  const hasty = new Relay({
    fetch: async (input, init) => {
      const url = new URL(String(input));
      if (url.pathname.endsWith("/wait")) {
        parts.push(Number(url.searchParams.get("timeout")));
        if (parts.length === 3) await deliver(mailed);
        url.searchParams.set("timeout", "0.3"); // as if each part were over
      }
      return fetch(url, init);
    },
  });
  const inbox = await hasty.inbox({ ttl: 10 });
  mailed = inbox.address;
  assert.equal((await inbox.wait({ subject: "Reset", timeout: 60_000 })).code, "271828");
  assert.deepEqual(parts, [20, 20, 20]);
  await assert.rejects(
    inbox.wait({ subject: "Other", timeout: 2_000 }),
    /^WaitTimeout: waited 2 s for 'Other'; 1 other came:\n.*'Reset'$/,
  );
  assert.ok(4 < parts.length && parts.length < 20);
  await inbox.close();
});

test("a wait that would never end, or cannot be meant, is refused at once", async () => {
  const inbox = /** @type {any} */ (relay.mailbox("a@b"));
  const outbound = /** @type {any} */ (relay.outbound("x"));
  for (const timeout of [NaN, -1, Infinity, "10s", null, [], 10n]) {
    for (const wait of [
      () => inbox.wait({ timeout: timeout ?? NaN }),
      () => inbox.waitNone(timeout),
      () => inbox.waitMany(1, { timeout: timeout ?? NaN }),
      () => outbound.wait("sent", { timeout }),
    ]) {
      await assert.rejects(wait, /^RelayError: a time to wait is a number of milliseconds, 0 or more, not /);
    }
  }
  await assert.rejects(inbox.waitNone("10s"), /not '10s'$/);
  for (const count of [NaN, -1, 1.5, "3"]) {
    await assert.rejects(inbox.waitMany(count), /^RelayError: so many messages cannot be waited for/);
  }
  await assert.rejects(relay.inbox({ ttl: NaN }), /^RelayError: an inbox's ttl is a number of minutes/);
});

test(
  "a wait in vain leaves out what was waited for, and says that there are more than it lists",
  withInbox(async (inbox) => {
    const bulk = Array.from({ length: 20 }, (_, at) => `Other ${at}`);
    for (const subject of ["Reset", ...bulk]) await deliver(inbox.address, { subject });
    await assert.rejects(inbox.waitMany(2, { subject: "Reset", timeout: 100 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      const [head, ...lines] = error.message.split("\n");
      assert.equal(head, "waited 0.1 s for 2 of 'Reset' (1 came); 20 others came:");
      assert.match(lines[0] ?? "", /: 'Other 19'$/);
      assert.equal(lines.length, 20);
      return true;
    });
    await assert.rejects(inbox.wait({ subject: "Welcome", timeout: 100 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      const [head, ...lines] = error.message.split("\n");
      assert.equal(head, "waited 0.1 s for 'Welcome'; others came, the newest 20:");
      assert.equal(lines.length, 20);
      return true;
    });
  }),
);

for (const { others, refused, captured, text } of cases.timeouts) {
  test(`both clients say of a wait in vain: ${text.split("\n")[0]}`, () => {
    const instead = others.length > 0 ? "1 other came" : "nothing came";
    const error = new WaitTimeout("'Reset'", 2_000, instead, others, refused, captured);
    assert.equal(error.message, text);
  });
}

test(
  "a wait in vain says who was refused since the inbox was made",
  withInbox(async (inbox) => {
    const refusal = await mistype(inbox.address);
    await assert.rejects(inbox.wait({ timeout: 100 }), {
      name: "WaitTimeout",
      message: `waited 0.1 s for any mail; nothing came; ${refusal}`,
    });
    await deliver(inbox.address);
    await assert.rejects(inbox.wait({ subject: "Welcome", timeout: 100 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      assert.match(error.message, /; 1 other came:\n {2}\S+ from a@shop\.example: 'Reset'\n1 recip/);
      assert.ok(error.message.endsWith(`\n${refusal}`));
      return true;
    });
  }),
);

test("a wait in vain at a relay that does not know who was refused says what came", async () => {
  const older = new Relay({
    fetch: async (input, init) =>
      /\/(refused|captured)$/.test(String(input))
        ? Response.json({ type: "about:blank", detail: "Not Found" }, { status: 404 })
        : fetch(input, init),
  });
  const inbox = await older.inbox({ ttl: 10 });
  await mistype(inbox.address);
  await assert.rejects(inbox.wait({ timeout: 100 }), {
    message: "waited 0.1 s for any mail; nothing came",
  });
  await inbox.close();
});

test(
  "a wait in vain says what was captured for the inbox's name elsewhere, to the administrator",
  withInbox(async (inbox) => {
    const name = inbox.address.split("@")[0];
    for (const to of [`${name}@${name}.example`, `${name}@${name}.example`, `x${name}@y.example`]) {
      await deliver(to);
    }
    const said =
      "waited 0.1 s for any mail; nothing came; mail to 1 other recipient was captured since the " +
      `inbox was made: ${name}@${name}.example (2 messages)`;
    await assert.rejects(inbox.wait({ timeout: 100 }), { message: said });
  }),
);

async function byKey() {
  const made = await fetch(`${process.env.RELAY_URL}/api/v1/keys`, {
    method: "POST",
    headers: {
      Authorization: `Bearer ${process.env.RELAY_TOKEN}`,
      "Content-Type": "application/json",
    },
    body: JSON.stringify({ owner: "tests", scopes: ["read", "send"] }),
  });
  return new Relay({ token: (await made.json()).token });
}

test(
  "a captured mailbox is waited for before its first mail, with the administrator's token",
  withInbox(async ({ address }) => {
    const [name, own] = address.split("@");
    const captured = relay.mailbox(`ada@${name}.example`);
    await assert.rejects(captured.wait({ timeout: 100 }), {
      message: "waited 0.1 s for any mail; nothing came, so it has no mailbox yet",
    });
    const came = captured.wait();
    await new Promise((done) => setTimeout(done, 300));
    await deliver(captured.address);
    assert.equal((await came).subject, "Reset");
    const never = relay.mailbox(`never.${name}@${own}`);
    await assert.rejects(never.wait(), /^Refused: 404 mailbox-not-found: .* not yours\.$/);
    const theirs = (await byKey()).mailbox(captured.address);
    await assert.rejects(theirs.wait(), /not yours\. Captured mail opens only to the admin/);
  }),
);

test("a wait in vain says that a key is not told what was captured", async () => {
  const inbox = await (await byKey()).inbox();
  await assert.rejects(inbox.wait({ timeout: 100 }), {
    message:
      "waited 0.1 s for any mail; nothing came (captured mail: only with the administrator's token)",
  });
  await inbox.close();
});

test("a wait in vain says what was captured of its own test's application", async () => {
  const inbox = await inboxOf(relay, { ttl: 10 }, "orders a book");
  const { user } = await smtpServerOf(relay, "orders a book");
  for (const name of [user, "another-test"]) await sendAs(name, `${name}@${inbox.address.split("@")[0]}.example`);
  await assert.rejects(inbox.wait({ timeout: 100 }), {
    message:
      "waited 0.1 s for any mail; nothing came; mail to 1 other recipient was captured since the " +
      `inbox was made: ${user}@${inbox.address.split("@")[0]}.example`,
  });
  await inbox.close();
});

test(
  "a wait in vain names what has just come",
  withInbox(async (inbox) => {
    for (let at = 0; at < 10; at++) {
      await deliver(inbox.address, { subject: "Welcome" });
      await assert.rejects(inbox.wait({ subject: "Reset", timeout: 0 }), (error) => {
        assert.match(String(error), /'Welcome'/);
        assert.doesNotMatch(String(error), /no subject/);
        return true;
      });
    }
  }),
);

test("a wait in vain leaves out whom others mistyped", () => {
  const all = ["own", "others", null].map((login) => ({ address: `${login}@a.example`, login }));
  assert.deepEqual(concerning(all, "ada.k3x9@a.example", "own"), all.slice(0, 1));
  assert.deepEqual(concerning(all, "ada.k3x9@a.example"), []);
  const older = [{ address: "ada.k3x99@a.example" }, { address: "bob@a.example" }];
  assert.deepEqual(concerning(older, "ada.k3x9@a.example", "own"), older.slice(0, 1));
});

for (const { written, meant, near } of cases.slips) {
  test(`both clients know whether ${written} is a slip of ${meant}`, () => {
    assert.equal(isNear(written, meant), near);
  });
}

for (const { subject, links, found = links[0], finds, misses } of cases.links) {
  test(`both clients find the same links in ${subject}`, () => {
    const message = new MessageData(
      /** @type {any} */ ({ subject, links, headers: {}, attachments: [] }),
      () => /** @type {any} */ (null),
    );
    for (const match of finds) assert.equal(message.link(match), found);
    for (const [match, text] of Object.entries(misses)) {
      assert.throws(() => message.link(match), { name: "NoSuchLink", message: text });
    }
  });
}

test(
  "a list and a search have the newest first, and mark them read",
  withInbox(async (inbox) => {
    for (const number of [0, 1, 2]) await deliver(inbox.address, { subject: `Number ${number}` });
    const subjects = (/** @type {{ subject: string | null }[]} */ found) =>
      found.map((one) => one.subject);
    assert.deepEqual(subjects(await inbox.messages(2)), ["Number 2", "Number 1"]);
    assert.deepEqual(subjects(await inbox.search("is:unread")), ["Number 0"]);
    assert.deepEqual(subjects(await inbox.messages()), ["Number 2", "Number 1", "Number 0"]);
    assert.deepEqual([await inbox.messages(0), await inbox.search("number", 0)], [[], []]);
    assert.deepEqual(subjects(await inbox.search("subject:1 -from:bank")), ["Number 1"]);
    await assert.rejects(inbox.search("form:shop"), (error) => {
      assert.ok(error instanceof Refused);
      assert.deepEqual([error.status, error.problem], [422, "invalid"]);
      assert.match(error.message, /^422 invalid: .*no operator/);
      return true;
    });
  }),
);

const MESSAGE = {
  id: "1",
  from_address: null,
  to: "a@b",
  subject: null,
  received_at: "2026-01-01T00:00:00Z",
  size: 1,
  body_text: null,
  body_html: null,
  otp: null,
  links: [],
  headers: {},
  attachments: [],
};

const INFO = {
  version: "1",
  smtp: null,
  submission: null,
  domains: [],
  capture: false,
  starttls: false,
  public_url: "http://relay.example",
};

/**
 * A relay behind a path of somebody's server, with 450 messages; next pages are from its root.
 * @param {{ knows?: boolean, refuses?: boolean }} [whole] whether it gives whole messages; an older
 *   one refuses to, or has never heard that names of a query can be wrong
 */
function paging({ knows = true, refuses = false } = {}) {
  const ids = Array.from({ length: 450 }, (_, at) => String(at));
  const empty = /** @type {number[]} */ ([]); // pages that have nothing, by the number of the call
  const state = { ids, most: 200, pages: 0, rows: 0, singles: 0, empty, ends: true };
  const { id: _, from_address, subject, received_at } = MESSAGE;
  /** @param {string | URL | Request} input */
  const fetch = async (input) => {
    const url = new URL(String(input));
    const id = /messages\/(\d+)$/.exec(url.pathname)?.[1];
    if (id) {
      state.singles += 1;
      return Response.json({ ...MESSAGE, id });
    }
    assert.equal(url.pathname, "/below/api/v1/mailboxes/a@b/messages");
    const query = url.searchParams;
    const asked = query.get("whole") === "true";
    if (asked && refuses) {
      const problem = { type: "/problems/unknown-parameter", detail: "no whole" };
      return Response.json(problem, { status: 422 });
    }
    const whole = asked && knows;
    state.pages += 1;
    const from = Number(query.get("cursor") ?? 0);
    const count = Math.min(Number(query.get("limit")), whole ? state.most : 200);
    const to = state.empty.includes(state.pages) ? from : from + count;
    query.set("cursor", String(to));
    query.set("n", String(state.pages)); // each is another
    const shown = whole ? MESSAGE : { from_address, subject, received_at };
    const rows = ids.slice(from, to).map((one) => ({ ...shown, id: one }));
    state.rows += rows.length;
    const link = `</api/v1/mailboxes/a@b/messages?${query}>; rel="next"`;
    const more = to < ids.length || !state.ends;
    return Response.json(rows, { headers: more ? { Link: link } : {} });
  };
  const inbox = new Relay({ url: "http://relay.example/below", fetch }).mailbox("a@b");
  /** @param {number} limit */
  const listed = async (limit) => (await inbox.messages(limit)).map((one) => one.id);
  return { state, listed, inbox };
}

test("more than a page is listed whole, and no message more than is asked for", async () => {
  const { state, listed } = paging();
  assert.deepEqual(await listed(1_000), state.ids);
  assert.deepEqual([state.pages, state.rows], [3, 450]);
  assert.equal((await listed(200)).length, 200);
  assert.deepEqual([state.pages, state.rows], [4, 650]);
  assert.deepEqual(await listed(250), state.ids.slice(0, 250));
  assert.deepEqual([state.pages, state.rows], [6, 900]);
  state.most = 60; // they are large
  assert.deepEqual(await listed(100), state.ids.slice(0, 100));
  assert.deepEqual([state.pages, state.rows], [8, 1_000]);
  assert.equal(state.singles, 0);
});

test("an empty page is not the end", async () => {
  const { state, inbox } = paging();
  state.empty = [1, 2, 4]; // a slow search finds nothing for a while
  const found = await inbox.search("word", 250);
  assert.deepEqual(
    found.map((one) => one.id),
    state.ids.slice(0, 250),
  );
  assert.deepEqual([state.pages, state.rows], [5, 250]);
});

test("a list without an end is given up after a thousand pages with nothing", async () => {
  const { state, listed } = paging();
  state.ends = false;
  assert.deepEqual(await listed(450), state.ids); // all that is asked for
  state.pages = 0;
  const why = /no relay answered: 1000 pages of its list are empty, and it goes on$/;
  await assert.rejects(listed(451), why);
  assert.equal(state.pages, 3 + 1_000);
});

for (const refuses of [true, false]) {
  const how = refuses ? "refuses whole ones" : "does not know of whole ones";
  test(`a relay that ${how} gives them one by one`, async () => {
    const { state, listed } = paging({ knows: false, refuses });
    assert.deepEqual(await listed(250), state.ids.slice(0, 250));
    assert.deepEqual([state.pages, state.rows, state.singles], [2, 250, 250]);
  });
}

for (const entries of [[], [{ id: "1", from_address: null, subject: null, received_at: "2026-01-01T00:00:00Z" }]]) {
  test(`a list of pages with ${entries.length} entries ends in its time, and a report`, async () => {
    let pages = 0;
    const server = createServer((_, response) => {
      pages += 1;
      response.setHeader("Link", `</api/v1/mailboxes/a@b/messages?cursor=${pages}>; rel="next"`);
      setTimeout(() => response.end(JSON.stringify(entries)), 50);
    }).listen(0, "127.0.0.1");
    await once(server, "listening");
    const inbox = new Relay({ url: `http://127.0.0.1:${portOf(server)}` }).mailbox("a@b");
    const late = /^Unreachable: the (list of a@b has not ended after 0.2 s|relay does not answer GET .*too long)/;
    await assert.rejects(inbox.messages(10_000, { timeout: 200 }), late);
    await assert.rejects(inbox.search("q", 10_000, { timeout: 200 }), late);
    assert.ok(pages < 20);
    await assert.rejects(inbox.messages(1, { timeout: Infinity }), /a time to wait is a number/);
    server.close();
    server.closeAllConnections();
  });
}

test("a report asks for a list that ends in five seconds", async () => {
  /** @type {unknown[]} */
  const asked = [];
  const messages = async (/** @type {unknown[]} */ ...how) => {
    asked.push(...how);
    throw new Unreachable("late");
  };
  assert.equal((await arrivedAt({ messages })).text, "what came cannot be read: late");
  assert.deepEqual(asked, [20, { timeout: 5_000 }]);
});

test("what came is listed however long its subjects are", async () => {
  const entries = [...Array(60).keys()].map((n) => {
    const subject = "x".repeat(65_536);
    return { id: String(n), from_address: null, subject, received_at: "2026-01-01T00:00:00Z" };
  });
  const server = createServer((asked, response) => {
    response.end(asked.url?.includes("/wait?") ? "null" : JSON.stringify(entries));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const inbox = new Relay({ url: `http://127.0.0.1:${portOf(server)}` }).mailbox("a@b");
  await assert.rejects(inbox.wait({ timeout: 50 }), (/** @type {Error} */ error) => {
    assert.match(error.message, /others came, the newest 20:/);
    return error.message.length < 6_000;
  });
  server.close();
  server.closeAllConnections();
});

test("an id leads nowhere else", async () => {
  /** @type {string[]} */
  const asked = [];
  const led = new Relay({
    url: "http://relay.example",
    fetch: async (input) => {
      asked.push(new URL(String(input)).pathname);
      return Response.json({});
    },
  });
  await assert.rejects(led.outbound("../x?y").entry(), Refused);
  assert.deepEqual(asked, ["/api/v1/outbound/..%2Fx%3Fy"]);
  for (const call of [
    () => led.mailbox("\ud800@b").messages(),
    () => led.outbound("\ud800").entry(),
    async () => led.mailbox("a@b", "rs_secret\n").messages(),
  ]) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof RelayError && !error.message.includes("rs_secret"));
      assert.match(error.message, /^nothing is called so: '\\ud800|^the inbox's token has characters/);
      return true;
    });
  }
  assert.equal(asked.length, 1);
});

test("an inbox ends when it is disposed of; one that was opened stays", async () => {
  /** @type {typeof Symbol.asyncDispose} */
  const dispose = Symbol.asyncDispose ?? /** @type {any} */ (Symbol.for("Symbol.asyncDispose"));
  const inbox = await relay.inbox({ ttl: 10, localPart: `a/bc?${Date.now()}` });
  assert.match(inbox.address, /^a\/bc\?\d+@/);
  assert.equal(`${inbox}`, inbox.address);
  const same = relay.mailbox(inbox.address);
  assert.deepEqual(await same.messages(), []);
  await same[dispose]();
  assert.deepEqual(await inbox.messages(), []);
  await inbox[dispose]();
  await assert.rejects(same.wait({ timeout: 5_000 }), /^Refused: 404 mailbox-not-found/);
  await inbox.close(); // twice does no harm
  await assert.rejects(inbox.close({ strict: true }), /^Refused: 404 mailbox-not-found/);
});

test("without a token an inbox has its own, which opens that inbox alone", async () => {
  const anonymous = new Relay({ token: null });
  const inbox = await anonymous.inbox();
  await deliver(inbox.address);
  assert.equal((await inbox.wait()).code, "271828");
  assert.ok(inbox.sessionToken);
  assert.equal((await anonymous.mailbox(inbox.address, inbox.sessionToken).messages()).length, 1);
  await assert.rejects(anonymous.mailbox(inbox.address).messages(), /404/);
  await assert.rejects(
    anonymous.send({ from: "a@relay.localhost", to: inbox.address, text: "x" }),
    /401/,
  );
  await inbox.close();
});

test(
  "what is sent is followed, and queued once under one key",
  withInbox(async (inbox) => {
    let id = "";
    for (let time = 0; time < 2; time++) {
      const sent = await relay.send({
        from: "shop@relay.localhost",
        to: [inbox.address],
        subject: "Invoice",
        text: "Here it is.",
        html: "<p>Here it is.",
        headers: { "X-Order": "7" },
        attachments: [
          { filename: "note.txt", content: "read mé" },
          { filename: "a.bin", content: Uint8Array.from({ length: 100_000 }, (_, at) => at % 256) },
          { filename: "b", content: "1", contentType: "image/png" },
        ],
        idempotencyKey: `once-${inbox.address}`,
      });
      assert.equal(sent.length, 1);
      assert.equal(sent[0]?.recipient, inbox.address);
      await sent[0]?.wait();
      assert.equal(await sent[0]?.status, "sent");
      id = sent[0]?.id ?? "";
    }
    const message = await inbox.wait({ subject: "Invoice" });
    const contents = await Promise.all(message.attachments.map((one) => one.content));
    assert.equal(text(contents[0]), "read mé");
    assert.deepEqual([contents[1]?.length, contents[1]?.[99_999]], [100_000, 99_999 % 256]);
    assert.deepEqual(
      message.attachments.map((one) => one.contentType),
      ["text/plain", "application/octet-stream", "image/png"],
    );
    assert.equal(message.headers.get("x-order"), "7");
    assert.equal((await inbox.messages()).length, 1);
    const entry = await relay.outbound(id).entry();
    assert.deepEqual(
      [entry.id, entry.recipient, entry.status, entry.attempts, entry.nextRetryAt, entry.notAfter],
      [id, inbox.address, "sent", 1, null, null],
    );
    assert.ok(entry.createdAt <= (entry.sentAt ?? entry.createdAt) && entry.sentAt !== null);
    assert.ok(Math.abs(Date.now() - entry.createdAt.getTime()) < 60_000, String(entry.createdAt));
    assert.ok(!Object.keys(entry).some((name) => name.includes("_")), Object.keys(entry).join());
    const [lost] = await relay.send({
      from: "shop@relay.localhost",
      to: "nobody@relay.localhost",
      text: "x",
    });
    await assert.rejects(relay.outbound(lost?.id ?? "").wait("sent"), (error) => {
      assert.ok(error instanceof NotDelivered);
      assert.match(error.message, /^the message is bounced, and will not be sent: .*550/);
      return true;
    });
    const response = await fetch(`${relay.url}/api/v1/messages/send`, {
      method: "POST",
      headers: {
        Authorization: `Bearer ${process.env["RELAY_TOKEN"]}`,
        "Content-Type": "application/json",
      },
      body: JSON.stringify({
        from: "a@relay.localhost",
        to: inbox.address,
        text: "x",
        send_at: new Date(Date.now() + 3_600_000).toISOString(),
      }),
    });
    const [queued] = (await response.json()).messages;
    await assert.rejects(relay.outbound(queued.id).wait("sent", { timeout: 100 }), {
      name: "WaitTimeout",
      message: `waited 0.1 s for ${queued.id} to be sent; it is queued`,
    });
    await assert.rejects(
      relay.outbound(id).wait("held"),
      /the message is sent, and will not be held/,
    );
  }),
);

test("where mail is taken is said", async () => {
  const info = await relay.info();
  assert.match(info.smtp ?? "", /^127\.0\.0\.1:\d+$/);
  assert.deepEqual([info.domains, info.publicUrl], [["relay.localhost"], process.env.RELAY_URL]);
});

test("a call of a client that is closed fails, one that is under way, too", async () => {
  const client = new Relay();
  const inbox = await client.inbox();
  const waits = assert.rejects(
    inbox.wait({ timeout: 20_000 }),
    /^RelayError: the client is closed/,
  );
  await new Promise((done) => setTimeout(done, 50));
  await client.close();
  await waits;
  await assert.rejects(client.info(), /the client is closed/);
  await relay.mailbox(inbox.address).close();
});

test("an inbox says when it ends, which is no later than its plan allows", async () => {
  const anonymous = new Relay({ token: null });
  for (const [ttl, minutes] of /** @type {[number, number][]} */ ([
    [5, 5],
    [120, 60],
  ])) {
    const inbox = await anonymous.inbox({ ttl });
    const left = (Number(inbox.expiresAt) - Date.now()) / 60_000;
    assert.ok(left > minutes - 1 && left < minutes + 1, `${ttl}: ${left}`);
    await inbox.close();
  }
  assert.equal(relay.mailbox("a@relay.localhost").expiresAt, null);
});

test("an inbox that was closed is not waited for", async () => {
  const inbox = await relay.inbox();
  await inbox.close();
  const why = /^RelayError: the inbox was closed before 'Reset' was waited for$/;
  await assert.rejects(inbox.wait({ subject: "Reset" }), why);
  await assert.rejects(inbox.waitMany(1, { subject: "Reset" }), why);
});

test("a state that no message has is refused before anything is asked", async () => {
  const nowhere = new Relay({ fetch: () => assert.fail("asked") });
  const status = /** @type {any} */ ("snt");
  await assert.rejects(
    nowhere.outbound("1").wait(status),
    /^RelayError: 'snt' is no state of a message: it is one of queued, .*, sent, .*held$/,
  );
});

test("a wait ends when its inbox is closed", async () => {
  const inbox = await relay.inbox();
  const waits = assert.rejects(
    inbox.wait({ subject: "Reset", timeout: 20_000 }),
    /^RelayError: the inbox was closed while 'Reset' was waited for$/,
  );
  await new Promise((done) => setTimeout(done, 50));
  await inbox.close();
  await waits;
});

test("what no relay is says so", async () => {
  for (const { url, error } of cases.urls) {
    assert.throws(() => new Relay({ url }), { name: "RelayError", message: error }, url);
  }
  assert.throws(() => new Relay({ token: "a\nb" }), /the token has characters that no token has/);
  const began = performance.now();
  const gone = createServer().listen(0, "127.0.0.1");
  await once(gone, "listening");
  const nowhere = `http://127.0.0.1:${portOf(gone)}`;
  await new Promise((done) => gone.close(done));
  await assert.rejects(
    new Relay({ url: nowhere }).mailbox("a@b.example").wait({ timeout: 300 }),
    (error) => {
      assert.ok(error instanceof Unreachable);
      assert.match(
        error.message,
        /^the relay does not answer GET http:\/\/127\.0\.0\.1:\d+\/api\/.*wait \(for \d\.\d s: .*ECONNREFUSED/,
      );
      return true;
    },
  );
  assert.ok(performance.now() - began >= 300, "it was asked again");
});

for (const { status, headers, body, error } of cases.no_relay) {
  test(`no relay: ${error}`, async () => {
    const server = createServer((_, response) => response.writeHead(status, headers).end(body));
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const client = new Relay({ url: `http://127.0.0.1:${portOf(server)}/` });
    const expected = { name: "Refused", message: error, status, problem: "unknown" };
    await assert.rejects(client.inbox(), expected);
    await assert.rejects(client.mailbox("a@b").messages(), expected);
    server.close();
    server.closeAllConnections();
  });
}

for (const { text, visible: shown, quoted: inQuotes } of cases.texts) {
  test(`both clients spell ${JSON.stringify(text)} alike`, () => {
    assert.equal(visible(text), shown);
    assert.equal(quoted(text), inQuotes);
    assert.equal(visible(shown), shown);
  });
}

for (const { text, times, most, visible: shown, in_a_line: line, quoted: inQuotes } of cases.long) {
  test(`both clients show as much of many ${JSON.stringify(text)}`, () => {
    const long = text.repeat(times);
    assert.equal(visible(long, most), shown);
    assert.equal(inALine(long, most), line);
    assert.equal(quoted(long), inQuotes);
  });
}

test("no error and no report fills a log", async () => {
  const long = "\u{e0041}".repeat(100_000);
  for (const error of [
    new RelayError(long),
    new Refused(422, "unprocessable", long, [long]),
    new WaitTimeout("any mail", 1, "1 other came", [long]),
    new NotDelivered("failed", "sent", long),
  ]) {
    assert.ok(error.message.length <= 20_000 && error.message.endsWith("…"), error.name);
  }
  const links = Array(20).fill(`https://x.example/${"q".repeat(15_000)}`);
  const message = {
    ...{ subject: long, sender: long, code: null, links, text: long, html: null },
    receivedAt: new Date(),
  };
  const { text: said } = await arrivedAt({ messages: async () => [message, message] });
  assert.ok(said.includes("from \\u{e0041}") && said.includes("…: \\u{e0041}"));
  assert.ok(said.length < 20_000);
});

/** @type {Record<string, (client: Relay) => Promise<unknown>>} */
const CALLS = {
  inbox: (client) => client.inbox(),
  wait: (client) => client.mailbox("a@b").wait({ timeout: 100 }),
  messages: (client) => client.mailbox("a@b").messages(),
  send: (client) => client.send({ from: "a@b", to: "c@d" }),
  outbound: (client) => client.outbound("x").entry(),
  info: (client) => client.info(),
};

for (const { call, body, times = 1, error: told } of cases.no_answers) {
  test(`no relay says to ${call} ${body} ${times} times`, async () => {
    const said = body.repeat(times);
    const client = new Relay({ url: "http://x", fetch: async () => new Response(said) });
    await assert.rejects(CALLS[call]?.(client) ?? Promise.resolve(), (error) => {
      assert.ok(error instanceof Refused);
      const start = told ?? `200 unknown: no relay answered: ${quoted(said.slice(0, 10))}`.slice(0, -1);
      assert.ok(error.message.startsWith(start), error.message);
      return true;
    });
  });
}

for (const { status, body, error } of cases.problems) {
  test(`a refusal drives nothing: ${error}`, async () => {
    const client = new Relay({ url: "http://x", fetch: async () => new Response(body, { status }) });
    const { detail } = JSON.parse(body);
    await assert.rejects(client.info(), { name: "Refused", message: error, detail });
  });
}

/**
 * @param {import("node:http").RequestListener} serve
 * @param {(client: Relay, url: string) => Promise<void>} body
 */
async function serving(serve, body) {
  const server = createServer(serve).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${portOf(server)}`;
  const client = new Relay({ url, token: "rk_secret" });
  try {
    await body(client, url);
  } finally {
    await client.close();
    server.close();
    server.closeAllConnections();
  }
}

test("what comes by and by is late", async () => {
  await serving(
    (_, response) => {
      response.writeHead(200, { "Content-Length": 1_000_000 });
      const drips = setInterval(() => response.write(" "), 50);
      response.on("close", () => clearInterval(drips));
    },
    (client) =>
      assert.rejects(
        client.mailbox("a@b").wait({ timeout: 100 }),
        /^Unreachable: .*\/wait \(for 5\.\d s: it takes too long\)/,
      ),
  );
});

test("a flood is cut off", async () => {
  let sent = 0;
  await serving(
    (_, response) => {
      const piece = Buffer.alloc(1 << 20, " ");
      const more = () => {
        while (!response.destroyed && response.write(piece)) sent += 1;
        sent += 1;
      };
      response.on("drain", more);
      more();
    },
    (client) =>
      assert.rejects(client.mailbox("a@b").wait({ timeout: 100 }), {
        name: "Refused",
        message: "200 unknown: no relay answered: it says more than 32 MiB",
      }),
  );
  assert.ok(sent < 96, `${sent} MiB`);
});

test("what is packed is not unpacked, and was not asked for", async () => {
  const packed = gzipSync(Buffer.alloc(10_000_000, " "));
  let accepts = /** @type {unknown} */ (null);
  await serving(
    (asked, response) => {
      accepts = asked.headers["accept-encoding"];
      response.writeHead(200, { "Content-Encoding": "gzip" }).end(packed);
    },
    (client) =>
      assert.rejects(client.info(), /^Refused: 200 unknown: no relay answered: it comes as 'gzip'$/),
  );
  assert.equal(accepts, "identity");
});

for (const count of [0, 1]) {
  test(`a list of ${count} a page that leads to itself is no relay's`, async () => {
    let asked = 0;
    await serving(
      ({ url }, response) => {
        if (!url?.includes("/messages?")) return response.end(JSON.stringify(MESSAGE));
        asked += 1;
        const next = "/api/v1/mailboxes/a@b/messages?limit=100&cursor=1";
        response.setHeader("Link", `<${next}>; rel="next"`);
        return response.end(JSON.stringify(Array(count).fill(MESSAGE)));
      },
      (client) =>
        assert.rejects(
          client.mailbox("a@b").messages(),
          /^Refused: 200 unknown: no relay answered: its next page is one that came before$/,
        ),
    );
    assert.equal(asked, 2);
  });
}

const ELSEWHERE = ["http://localhost:9/x", "//localhost:9/x", "/\\localhost:9/x", "1/steal", "?x"];
for (const next of [...ELSEWHERE, "/a\tb", "/\xe9"]) {
  test(`no token goes to another place: ${next}`, async () => {
    /** @type {string[]} */
    const asked = [];
    const client = new Relay({
      url: "http://relay.example",
      token: "rk_secret",
      fetch: async (input) => {
        asked.push(String(input));
        return Response.json([MESSAGE], { headers: { Link: `<${next}>; rel="next"` } });
      },
    });
    await assert.rejects(client.mailbox("a@b").messages(), {
      name: "Refused",
      message: `200 unknown: no relay answered: its next page is at ${quoted(next)}`,
    });
    assert.equal(asked.length, 1);
  });
}

test("a next page's header that has no end is looked through once, if at all", async () => {
  for (const [link, calls] of /** @type {const} */ ([["<".repeat(8_192), 1], ["<".repeat(95_000), 0]])) {
    const headers = { Link: link };
    const client = new Relay({ url: "http://x", fetch: async () => Response.json([MESSAGE], { headers }) });
    const found = client.mailbox("a@b").messages();
    if (calls) assert.equal((await found).length, 1);
    else await assert.rejects(found, /^Refused: 200 unknown: no relay answered: its Link has more than 8 KiB$/);
  }
});

test("an error that nobody catches is printed without what others said, as they said it", async () => {
  const evil = "##vso[task.x]\u202e";
  const body = JSON.stringify({ type: evil, detail: evil, errors: [evil], title: evil });
  const client = new Relay({ url: "http://x", fetch: async () => new Response(body, { status: 422 }) });
  const refused = await client.info().catch((error) => error);
  assert.equal(refused.detail, evil);
  for (const error of [
    refused,
    new NotDelivered(evil, "sent", evil),
    new WaitTimeout(evil, 1, evil, [evil], [evil]),
  ]) {
    assert.doesNotMatch(inspect(error), /##vso\[|\u202e/);
  }
});

test("where null comes at once nobody is asked without a rest", async () => {
  let asked = 0;
  const client = new Relay({
    url: "http://x",
    fetch: async (input) => {
      if (!String(input).includes("/wait?")) return Response.json([]);
      asked += 1;
      return Response.json(null);
    },
  });
  await assert.rejects(client.mailbox("a@b").wait({ timeout: 400 }), WaitTimeout);
  assert.ok(2 < asked && asked < 10, `${asked} calls`);
});

for (const call of ["info", "outbound", "send"]) {
  test(`what is no message has 2 MiB at most: ${call}`, async () => {
    const body = `[${"{},".repeat(700_000)}{}]`;
    const client = new Relay({ url: "http://x", fetch: async () => new Response(body) });
    await assert.rejects(CALLS[call]?.(client) ?? Promise.resolve(), {
      message: "200 unknown: no relay answered: it says more than 2 MiB",
    });
  });
}

test("no error drives anything", () => {
  const evil = "\x1b[2J\x9b31m\u202e##vso[task.x]\n::error::x";
  for (const error of [
    new RelayError(evil),
    new UnexpectedMail(evil),
    new WaitTimeout("any mail", 1, "1 other came", [evil]),
    new NotDelivered("failed", "sent", evil),
    new Refused(422, evil, evil, [evil]),
  ]) {
    assert.ok(error.message.includes("vso[task.x]"));
    assert.doesNotMatch(error.message, /\x1b|\x9b|\u202e|##vso\[|^\s*::/m);
    assert.doesNotMatch(String(error.stack), /\x1b|\x9b|\u202e|##vso\[|^\s*::/m);
  }
});

for (const { url, info, host, user, link } of cases.smtp_servers) {
  test(`an application is pointed where it reaches the relay: ${link}`, async () => {
    const client = new Relay({ url, token: "x", fetch: async () => Response.json({ ...INFO, ...info }) });
    assert.deepEqual(await smtpServerOf(client, "sign up"), {
      host,
      port: 2525,
      user,
      password: user && "secret",
      tls: info.starttls,
      url: link,
    });
  });
}

test("what was sent is waited for as long as is said, whatever answers", async () => {
  const silent = createSocketServer().listen(0, "127.0.0.1");
  const hangsUp = createSocketServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
  await Promise.all([once(silent, "listening"), once(hangsUp, "listening")]);
  for (const server of [silent, hangsUp]) {
    const client = new Relay({ url: `http://127.0.0.1:${portOf(server)}` });
    for (const timeout of [0, 400]) {
      const began = performance.now();
      await assert.rejects(
        client.outbound("x").wait("sent", { timeout }),
        /^Unreachable: .*GET http.*\/api\/v1\/outbound\/x /,
      );
      const took = performance.now() - began;
      assert.ok(timeout <= took && took < timeout + 3_000, `${took} ms of ${timeout}`);
    }
    await client.close();
    server.close();
  }
});

test("what was sent is waited for longer than another call, if that is said", async () => {
  let asked = 0;
  const client = new Relay({
    url: "http://relay.example",
    fetch: async () => {
      asked += 1;
      throw new TypeError("fetch failed");
    },
  });
  const began = performance.now();
  await assert.rejects(client.outbound("x").wait("sent", { timeout: 14_000 }), /^Unreachable: /);
  assert.ok(performance.now() - began > 12_000, "not as long as another call is repeated");
  assert.ok(asked > 10);
});

test("an inbox is closed soon, and what came is listed soon, where nothing answers", async () => {
  const server = createServer((asked, response) => {
    if (asked.url?.includes("/wait?")) response.end("null");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const inbox = new Relay({ url: `http://127.0.0.1:${portOf(server)}` }).mailbox("a@b");
  const began = performance.now();
  await assert.rejects(
    inbox.wait({ timeout: 100 }),
    /^WaitTimeout: .* for any mail; what came cannot be listed: the relay does not answer/,
  );
  await inbox.close();
  assert.ok(performance.now() - began < 6_000);
  server.close();
  server.closeAllConnections();
});

test("a server that hangs up is asked again, unless that could make something twice", async () => {
  let asked = 0;
  /** @type {number[]} */
  const waits = [];
  const server = createSocketServer((socket) => {
    asked += 1;
    socket.once("data", (request) => {
      waits.push(Number(/timeout=([0-9.]+)/.exec(String(request))?.[1]));
      socket.destroy();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const client = new Relay({ url: `http://127.0.0.1:${portOf(server)}` });
  await assert.rejects(client.inbox(), /^Unreachable: .*POST http.*\/api\/v1\/mailboxes/);
  assert.equal(asked, 1);
  await assert.rejects(client.mailbox("a@b").wait({ timeout: 300 }), /^Unreachable: /);
  assert.ok(asked > 2);
  assert.ok((waits.at(-1) ?? 1) < (waits[1] ?? 0), "each try asks for what is left of the time");
  server.close();
});

test("a relay that is not there yet is waited for, even by what could make something twice", async () => {
  const server = createServer((_, response) => {
    response.writeHead(201, { "Content-Type": "application/json" });
    const made = { address: "a@b.example", session_token: "rs_1" };
    response.end(JSON.stringify({ ...made, expires_at: "2030-01-01T00:00:00Z" }));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const port = portOf(server);
  await new Promise((done) => server.close(done));
  const made = new Relay({ url: `http://127.0.0.1:${port}`, token: null }).inbox();
  await new Promise((done) => setTimeout(done, 120));
  server.listen(port, "127.0.0.1");
  assert.equal((await made).sessionToken, "rs_1");
  server.close();
  server.closeAllConnections();
});

test("an answer of somebody in front who is busy is asked again", async () => {
  /** @type {(number | [number, string])[]} */
  const answers = [503, 502, 200];
  const client = new Relay({
    url: "http://relay.example",
    token: "",
    fetch: async (_, init) => {
      assert.equal(new Headers(init?.headers).get("Authorization"), null);
      const status = Number(answers.shift());
      return status === 200
        ? Response.json(INFO)
        : new Response("busy", { status });
    },
  });
  assert.equal((await client.info()).version, "1");
  assert.deepEqual(answers, []);
});

test("the version is the package's", () => {
  const manifest = readFileSync(new URL("../package.json", import.meta.url), "utf-8");
  assert.equal(VERSION, JSON.parse(manifest).version);
});
