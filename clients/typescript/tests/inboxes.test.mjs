// Inboxes and messages, against the relay at RELAY_URL.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { test } from "node:test";
import { inspect } from "node:util";
import { runInNewContext } from "node:vm";
import {
  NoSuchLink,
  NotDelivered,
  Refused,
  Relay,
  RelayError,
  UnexpectedMail,
  VERSION,
  WaitTimeout,
} from "relay-client";
import { cases, inner } from "./cases.mjs";
import { mistype, refuseAs, sendAs } from "./refusals.mjs";
import { INFO, serving } from "./serving.mjs";

const { inboxOf, smtpServerOf } = await inner("fixtures");
const { MessageData } = await inner("records");

const relay = new Relay();
const LINK = "https://id.shop.example/reset?token=1";

test("a relay has its token, and prints it nowhere", () => {
  const opened = new Relay({ url: "http://127.0.0.1:9", token: "rk_secret" });
  assert.equal(opened.token, "rk_secret");
  assert.equal(new Relay({ token: null }).token, null);
  const printed = inspect(opened, { depth: null, showHidden: true, getters: false });
  assert.ok(!`${printed}${JSON.stringify(opened)}`.includes("secret"), printed);
});

test("an anonymous inbox has its token, and prints it nowhere", () => {
  const opened = new Relay({ token: null }).mailbox("a@shop.example", "rs_secret");
  assert.equal(opened.sessionToken, "rs_secret");
  const { sessionToken } = opened;
  assert.equal(sessionToken, "rs_secret");
  const printed = inspect(opened, { depth: null, showHidden: true, getters: false });
  assert.ok(!`${printed}${JSON.stringify(opened)}`.includes("secret"), printed);
  const names = Object.getOwnPropertyNames(opened); // what Chai prints
  assert.deepEqual(names, ["address", "expiresAt", "timeout"]);
});

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

/** @param {Uint8Array | undefined} bytes */
const text = (bytes) => new TextDecoder().decode(bytes);

test(
  "an error's first frame is its caller's",
  withInbox(async ({ address, sessionToken }) => {
    for (const { Relay: Made } of [{ Relay }, createRequire(import.meta.url)("relay-client")]) {
      const one = new Made();
      const inbox = one.mailbox(address, sessionToken);
      for (const [call, name] of /** @type {[() => Promise<unknown>, string][]} */ ([
        [async () => await inbox.wait({ timeout: 0 }), "WaitTimeout"],
        [async () => await one.inbox({ ttl: NaN }), "RelayError"],
        [async () => await one.mailbox(`not.${address}`).messages(), "Refused"],
        [async () => new Made({ url: "x" }), "RelayError"],
      ])) {
        await assert.rejects(call, ({ name: said, message, stack }) => {
          assert.equal(said, name);
          assert.ok(stack.startsWith(`${name}: ${message}\n`), stack);
          const [first] = stack.slice(name.length + message.length + 3).split("\n");
          assert.match(first, /^ +at .*inboxes\.test\.mjs:\d+/);
          assert.ok(stack.split("inboxes.test.mjs:").length > 2, `nor who called that: ${stack}`);
          return true;
        });
      }
    }
  }),
);

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
    assert.deepEqual([file?.filename, file?.contentType, file?.size], ["invoice.pdf", "application/pdf", 4]);
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
            /^no link like (?:'.*'|\/\^http:\/) in 'Reset'; its links:\n {2}https:\/\/id\.shop\.example\/reset/,
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
      new Promise((done) => setTimeout(done, 200)).then(() => deliver(inbox.address, { subject: "Two" })),
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
    await assert.rejects(inbox.wait({ subject: "Reset", sender: "bank", timeout: 100 }), (error) => {
      assert.ok(error instanceof WaitTimeout && error instanceof RelayError);
      assert.match(
        error.message,
        /^waited 0\.1 s for mail from 'bank' with 'Reset' in the subject; 1 other came:\n {2}20\S+Z from a@shop\.example: 'Welcome'$/,
      );
      assert.equal(error.timeout, 100);
      return true;
    });
    await assert.rejects(inbox.waitMany(3, { timeout: 100 }), /3 messages; 1 came, and nothing else$/);
    await assert.rejects(inbox.waitNone(5_000), (error) => {
      assert.ok(error instanceof UnexpectedMail);
      assert.match(error.message, /^mail came where none was to come:\n.*'Welcome'$/);
      return true;
    });
    await inbox.waitNone(100, { subject: "Reset" });
    await assert.rejects(
      inbox.wait({ subject: "Reset", timeout: 0 }),
      /waited 0 s for mail with 'Reset' in the subject/,
    );
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
    /^WaitTimeout: waited 2 s for mail with 'Other' in the subject; 1 other came:\n.*'Reset'$/,
  );
  assert.ok(4 < parts.length && parts.length < 20);
  await inbox.close();
});

test("a regular expression is waited for, by a call for each message that comes", async () => {
  const waits = /** @type {(string | null)[]} */ ([]);
  const counted = new Relay({
    fetch: async (input, init) => {
      const { pathname, searchParams } = new URL(String(input));
      if (pathname.endsWith("/wait")) waits.push(searchParams.get("subject"));
      return fetch(input, init);
    },
  });
  const inbox = await counted.inbox({ ttl: 10 });
  for (const subject of ["Welcome", "Order"]) await deliver(inbox.address, { subject });
  await inbox.waitMany(2);
  await assert.rejects(
    inbox.wait({ subject: /Order \d+/, timeout: 0 }),
    /^WaitTimeout: waited 0 s for mail with \/Order \\d\+\/ in the subject; 2 others came:\n/,
  );
  await inbox.waitNone(0, { subject: /Order \d+/g });
  waits.length = 0;
  const later = (async () => {
    for (const subject of ["Order 1", "Order 2"]) {
      await new Promise((done) => setTimeout(done, 300));
      await deliver(inbox.address, { subject });
    }
  })();
  const orders = await inbox.waitMany(2, { subject: /Order \d+/g });
  await later;
  assert.deepEqual(
    orders.map(({ subject }) => subject),
    ["Order 1", "Order 2"],
  );
  assert.ok(waits.length <= 5, "one each, and those that find nobody parsed yet");
  waits.length = 0;
  assert.equal((await inbox.wait({ subject: "ORDER", sender: /^a@shop/ })).subject, "Order");
  assert.deepEqual(waits, ["ORDER"]);
  await assert.rejects(
    inbox.wait({ subject: "Order", sender: runInNewContext("/^bob@/"), timeout: 100 }),
    / mail from \/\^bob@\/ with 'Order' in the subject; 4 others came:/,
  );
  await assert.rejects(inbox.waitNone(1_000, { subject: /Order \d/ }), /'Order 1'$/);
  for (const subject of [5, null, ["Order"]]) {
    const careless = /** @type {any} */ ({ subject });
    await assert.rejects(inbox.wait(careless), /^RelayError: a subject is waited for by a part of it/);
  }
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
  for (const ttl of [NaN, 0, -1]) {
    await assert.rejects(
      relay.inbox({ ttl }),
      /^RelayError: an inbox's ttl is a number of minutes above 0, not /,
    );
  }
});

test(
  "a wait in vain leaves out what was waited for, and says that there are more than it lists",
  withInbox(async (inbox) => {
    const bulk = Array.from({ length: 20 }, (_, at) => `Other ${at}`);
    for (const subject of ["Reset", ...bulk]) await deliver(inbox.address, { subject });
    await assert.rejects(inbox.waitMany(2, { subject: "Reset", timeout: 100 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      const [head, ...lines] = error.message.split("\n");
      assert.equal(head, "waited 0.1 s for 2 messages with 'Reset' in the subject; 1 came, and 20 others:");
      assert.match(lines[0] ?? "", /: 'Other 19'$/);
      assert.equal(lines.length, 20);
      return true;
    });
    await assert.rejects(inbox.wait({ subject: "Welcome", timeout: 100 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      const [head, ...lines] = error.message.split("\n");
      assert.equal(head, "waited 0.1 s for mail with 'Welcome' in the subject; others came, the newest 20:");
      assert.equal(lines.length, 20);
      return true;
    });
  }),
);

for (const { others, rejected, captured, hint, text } of cases.timeouts) {
  test(`both clients say of a wait in vain: ${text.split("\n")[0]}`, () => {
    const instead = others.length > 0 ? "1 other came" : "nothing came";
    const error = new WaitTimeout("'Reset'", 2_000, instead, others, rejected, captured, hint);
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

test("a wait in vain at a relay that cannot say who was refused says what came", async () => {
  const broken = new Relay({
    fetch: async (input, init) =>
      /\/(refused|captured)$/.test(new URL(String(input)).pathname)
        ? Response.json({ type: "about:blank", detail: "It broke." }, { status: 500 })
        : fetch(input, init),
  });
  const inbox = await broken.inbox({ ttl: 10 });
  await mistype(inbox.address);
  await assert.rejects(inbox.wait({ timeout: 100 }), {
    message: "waited 0.1 s for any mail; nothing came",
  });
  await inbox.close();
});

test("a wait in vain that says who was refused does not ask what it would not say", async () => {
  /** @type {string[]} */
  const asked = [];
  /** @type {Record<string, unknown>} */
  const said = { wait: null, refused: [{ address: "ax@b", reply: "550 No" }] };
  const key = new Relay({
    url: "http://x",
    token: "rk_x",
    fetch: async (input) => {
      const name = new URL(String(input)).pathname.split("/").pop() ?? "";
      asked.push(name);
      return Response.json(said[name] === undefined ? [] : said[name]);
    },
  });
  await assert.rejects(key.mailbox("a@b").wait({ timeout: 0 }), {
    message:
      "waited 0 s for any mail; nothing came; 1 recipient was refused since the inbox was made: " +
      "ax@b (550 No)",
  });
  assert.deepEqual(asked, ["wait", "messages", "refused", "captured"]);
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

test(
  "a wait in vain says what nobody signed in for, where nothing else was captured",
  withInbox(async (inbox) => {
    for (const _ of "12") await deliver("ada@customer.example");
    const said = "ada@customer.example (2 messages; nobody signed in: perhaps another test's)";
    await assert.rejects(inbox.wait({ timeout: 100 }), { captured: [said] });
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
    await assert.rejects(never.wait(), {
      message: `404 mailbox-not-found: There is no such mailbox, or it is over, or it is not yours. (${never})`,
    });
    const theirs = (await byKey()).mailbox(captured.address);
    await assert.rejects(theirs.wait(), /not yours\. \(ada@.*\) Captured mail opens only to the admin/);
  }),
);

test("a wait in vain says that a key is not told what was captured", async () => {
  const inbox = await (await byKey()).inbox();
  await assert.rejects(inbox.wait({ timeout: 100 }), {
    message:
      "waited 0.1 s for any mail; nothing came\n" +
      "If the application mailed another address, that is not shown to an API key. Look for it on the " +
      "relay's page (relay open), or set RELAY_TOKEN to the administrator's token: admin_token in " +
      "run/relay.json of the relay's data directory.",
  });
  await inbox.close();
});

test("a wait in vain says that nobody is told without a token", async () => {
  const inbox = await new Relay({ token: "" }).inbox();
  await assert.rejects(inbox.wait({ timeout: 100 }), /; nothing came\n.* is not shown without a token\. /);
  await inbox.close();
});

test("what no token opens is told what does, and where", async () => {
  for (const token of ["", "rk_unknown"]) {
    const sent = new Relay({ token }).send({ from: "a@relay.localhost", to: "b@relay.localhost" });
    await assert.rejects(sent, (error) => {
      assert.ok(
        String(error).endsWith(
          ` (POST ${relay.url}/api/v1/messages/send) Set RELAY_TOKEN to a key that is made at this ` +
            "relay (relay key create --owner tests --scope read,send).",
        ),
        String(error),
      );
      return true;
    });
  }
});

test("a wait in vain says what was captured of its own test's application", async () => {
  const inbox = await inboxOf(relay, { ttl: 10 }, "orders a book");
  const { user } = await smtpServerOf(relay, "orders a book");
  for (const name of [user, "another-test"])
    await sendAs(name, `${name}@${inbox.address.split("@")[0]}.example`);
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

test("a wait in vain leaves out whom others mistyped", async () => {
  for (const [name, also] of /** @type {const} */ ([["signs in", true], [undefined, false]])) {
    const inbox = name ? await inboxOf(relay, { ttl: 10 }, name) : await relay.inbox({ ttl: 10 });
    const [local, domain] = inbox.address.split("@");
    const { user } = await smtpServerOf(relay, name ?? "signs in");
    for (const one of ["another-test", user]) await refuseAs(one, `${one}.${local}@${domain}`);
    await assert.rejects(inbox.wait({ timeout: 0 }), (error) => {
      assert.ok(error instanceof WaitTimeout);
      const refused = also ? [`${user}.${local}@${domain} (550 5.1.1 No such mailbox here)`] : [];
      assert.deepEqual(error.rejectedRecipients, refused);
      return true;
    });
    await inbox.close();
  }
});

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
    const subjects = (/** @type {{ subject: string | null }[]} */ found) => found.map((one) => one.subject);
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

test("an inbox whose time has ended is named, with the time", async () => {
  const inbox = await relay.inbox({ ttl: 0.3 / 60 });
  const ended = inbox.expiresAt?.toISOString().replace(/\.\d+/, "");
  const said = `The inbox ${inbox.address} is over: its time ended at ${ended}.`;
  for (const read of [() => inbox.wait(), () => inbox.messages()]) {
    await assert.rejects(read, { message: `404 mailbox-not-found: ${said}` });
  }
});

for (const { made, wanted, problem, says } of cases.refused) {
  test(`a refusal says: ${says}`, () => {
    let makes = made.expires_at !== undefined;
    return serving(
      (_, response) => {
        const inbox = { address: "jane@shop.example", session_token: null, ...made };
        response.statusCode = makes ? 201 : 400;
        response.end(JSON.stringify(makes ? inbox : { type: `/problems/${problem}`, detail: "No." }));
        makes = false;
      },
      async (client) => {
        const { local_part: localPart, domain } = wanted;
        const refused = { message: `400 ${problem}: ${says}` };
        if (!makes) return assert.rejects(client.inbox({ localPart, domain }), refused);
        const inbox = await client.inbox();
        await assert.rejects(inbox.wait(), refused);
        await assert.rejects(inbox.messages(), refused);
      },
    );
  });
}

test("without a token an inbox has its own, which opens that inbox alone", async () => {
  const anonymous = new Relay({ token: null });
  const inbox = await anonymous.inbox();
  await deliver(inbox.address);
  assert.equal((await inbox.wait()).code, "271828");
  assert.ok(inbox.sessionToken);
  assert.equal((await anonymous.mailbox(inbox.address, inbox.sessionToken).messages()).length, 1);
  await assert.rejects(anonymous.mailbox(inbox.address).messages(), /404/);
  await assert.rejects(anonymous.send({ from: "a@relay.localhost", to: inbox.address, text: "x" }), /401/);
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
          { path: new URL("../LICENSE", import.meta.url).pathname, filename: "licence.txt" },
        ],
        idempotencyKey: `once-${inbox.address}`,
      });
      assert.equal(sent.length, 1);
      assert.equal(sent[0]?.recipient, inbox.address);
      await sent[0]?.wait();
      /** @type {import("relay-client").State | undefined} */
      const status = await sent[0]?.status;
      assert.equal(status, "sent");
      id = sent[0]?.id ?? "";
    }
    const message = await inbox.wait({ subject: "Invoice" });
    const contents = await Promise.all(message.attachments.map((one) => one.content));
    assert.equal(text(contents[0]), "read mé");
    assert.deepEqual([contents[1]?.length, contents[1]?.[99_999]], [100_000, 99_999 % 256]);
    assert.deepEqual(
      message.attachments.map((one) => one.contentType),
      ["text/plain", "application/octet-stream", "image/png", "text/plain"],
    );
    assert.equal(message.attachments[3]?.filename, "licence.txt");
    assert.match(text(contents[3]), /Apache License/);
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
    await assert.rejects(relay.outbound(id).wait("held"), /the message is sent, and will not be held/);
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
  const waits = assert.rejects(inbox.wait({ timeout: 20_000 }), /^RelayError: the client is closed/);
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

test("an inbox that was closed is not waited for, nor is it read", async () => {
  const inbox = await relay.inbox();
  await deliver(inbox.address, { attachments: [{ filename: "a.txt", content: "Be kind." }] });
  const message = await inbox.wait();
  await inbox.close();
  for (const read of [
    () => inbox.wait({ subject: "Reset" }),
    () => inbox.waitNone(),
    () => inbox.waitMany(1),
    () => inbox.messages(),
    () => message.raw,
    () => message.attachments[0]?.content,
    () => message.checks(),
    () => message.delete(),
  ]) {
    await assert.rejects(async () => read(), {
      message: `the inbox ${inbox.address} was closed, and its mail is gone: read it before that`,
    });
  }
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
  const waits = assert.rejects(inbox.wait({ subject: "Reset", timeout: 20_000 }), (error) => {
    const what = "was closed while mail with 'Reset' in the subject was waited for";
    const said = `RelayError: the inbox ${inbox.address} ${what}`;
    assert.equal(String(error), said);
    assert.ok(error instanceof RelayError && error.cause === undefined, "it says nothing");
    return true;
  });
  await new Promise((done) => setTimeout(done, 50));
  await inbox.close();
  await waits;
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

test("the version is the package's", () => {
  const manifest = readFileSync(new URL("../package.json", import.meta.url), "utf-8");
  assert.equal(VERSION, JSON.parse(manifest).version);
});
