// Answers that have no end, or lead elsewhere: each call ends, in little memory.

import assert from "node:assert/strict";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { Refused, Relay, RelayError } from "relay-client";
import { inner } from "./cases.mjs";
import { MESSAGE, serving } from "./serving.mjs";

const { arrivedAt } = await inner("fixtures");
const { quoted } = await inner("text");

const ENTRY = { id: "1", from_address: null, subject: null, received_at: "2026-01-01T00:00:00Z" };

for (const entries of [[], [MESSAGE]]) {
  test(`a list of pages with ${entries.length} entries ends in its time, and a report`, async () => {
    let pages = 0;
    const late =
      /^Unreachable: the (list of a@b has not ended after 0.2 s|relay does not answer GET .*too long)/;
    await serving(
      ({ url }, response) => {
        pages += 1;
        const said = url?.includes("/messages?") ? entries : MESSAGE;
        response.setHeader("Link", `</api/v1/mailboxes/a@b/messages?cursor=${pages}>; rel="next"`);
        setTimeout(() => response.end(JSON.stringify(said)), 50);
      },
      async (client) => {
        const inbox = client.mailbox("a@b");
        await assert.rejects(inbox.messages(10_000, { timeout: 200 }), late);
        await assert.rejects(inbox.search("q", 10_000, { timeout: 200 }), late);
        assert.ok(pages < 20);
        await assert.rejects(inbox.messages(1, { timeout: Infinity }), /a time to wait is a number/);
      },
    );
  });
}

test("a report has what was read before its time or its bytes ended, and says so", async (t) => {
  let now = performance.now();
  t.mock.method(performance, "now", () => now);
  for (const [size, seconds, pages, end] of /** @type {const} */ ([
    [0, 3, 2, /^and more could not be read within 5 s$/],
    [0, 6, 1, /^and more could not be read within 5 s$/],
    [3, 0, 2, /^and more cannot be read: the list of a@b has more than 4 MiB: ask for /],
    [5, 0, 1, /^and more cannot be read: the list of a@b has more than 4 MiB: ask for /],
  ])) {
    let asked = 0;
    const client = new Relay({
      url: "http://x",
      fetch: async () => {
        now += 1_000 * seconds;
        asked += 1;
        const said = JSON.stringify([{ ...MESSAGE, subject: `page ${asked}` }]);
        const headers = { Link: `</x/messages?n=${asked}>; rel="next"` };
        return new Response(" ".repeat(size << 20) + said, { headers });
      },
    });
    const { text, messages } = await arrivedAt(client.mailbox("a@b"));
    const shown = text.split("\n\n----\n\n");
    assert.match(shown.pop() ?? "", end);
    assert.equal(messages.length, pages);
    assert.deepEqual(
      shown.map((/** @type {string} */ one) => /page \d/.exec(one)?.[0]),
      ["page 1", "page 2"].slice(0, pages).reverse(),
    );
  }
});

test("inboxes that do not end have one time in all, unless one is asked to say so", async (t) => {
  let now = performance.now();
  t.mock.method(performance, "now", () => now);
  let asked = 0;
  const client = new Relay({
    url: "http://x",
    fetch: async () => {
      now += 900;
      asked += 1;
      throw new TypeError("fetch failed");
    },
  });
  const tries = [];
  for (const strict of [false, false, false, true, false]) {
    const before = asked;
    const closed = client.mailbox("a@b").close({ strict });
    await (strict ? assert.rejects(closed, /^Unreachable: /) : closed);
    tries.push(asked - before);
  }
  assert.deepEqual(tries, [3, 3, 1, 3, 1]);
});

test("a list ends at its most, in bytes", async () => {
  let pages = 0;
  const padding = " ".repeat(31 << 20);
  const led = new Relay({
    url: "http://relay.example",
    fetch: async () =>
      new Response(padding + JSON.stringify(Array(6).fill(MESSAGE)), {
        headers: { Link: `</x/messages?n=${(pages += 1)}>; rel="next"` },
      }),
  });
  await assert.rejects(led.mailbox("a@b").messages(60), {
    name: "RelayError",
    message: "the list of a@b has more than 128 MiB: ask for fewer messages at once",
  });
  assert.equal(pages, 5);
});

test("what came is listed however long its subjects are", async () => {
  const subject = "x".repeat(65_536);
  const entries = [...Array(60).keys()].map((n) => ({ ...ENTRY, id: String(n), subject }));
  await serving(
    ({ url }, response) => response.end(url?.includes("/wait?") ? "null" : JSON.stringify(entries)),
    (client) =>
      assert.rejects(client.mailbox("a@b").wait({ timeout: 50 }), (/** @type {Error} */ error) => {
        assert.match(error.message, /others came, the newest 20:/);
        return error.message.length < 6_000;
      }),
  );
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
    async () => led.mailbox("a@b", "rs_se\ncret").messages(),
  ]) {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof RelayError && !error.message.includes("cret"));
      assert.match(error.message, /^nothing is called so: '\\ud800|^the inbox's token has characters/);
      return true;
    });
  }
  assert.equal(asked.length, 1);
});

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
        message: /^200 unknown: no relay answered: it says more than 32 MiB \(GET http/,
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
      assert.rejects(
        client.info(),
        /^Refused: 200 unknown: no relay answered: it comes as 'gzip' \(GET http:\S+\/info\)$/,
      ),
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
          /^Refused: 200 unknown: no relay answered: its next page is one that came before \(GET http:\S+\)$/,
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
      message:
        `200 unknown: no relay answered: its next page is at ${quoted(next)} ` +
        "(GET http://relay.example/api/v1/mailboxes/a@b/messages)",
    });
    assert.equal(asked.length, 1);
  });
}

test("a next page's header that has no end is looked through once, if at all", async () => {
  for (const [link, calls] of /** @type {const} */ ([
    ["<".repeat(8_192), 1],
    ["<".repeat(95_000), 0],
  ])) {
    const headers = { Link: link };
    const client = new Relay({ url: "http://x", fetch: async () => Response.json([MESSAGE], { headers }) });
    const found = client.mailbox("a@b").messages();
    if (calls) assert.equal((await found).length, 1);
    else
      await assert.rejects(
        found,
        /^Refused: 200 unknown: no relay answered: its Link has more than 8 KiB \(GET \S+\)$/,
      );
  }
});
