// The commands for Cypress, against a stand-in.
//
// Cypress itself is not run here: installing it fetches a program of several hundred megabytes from
// elsewhere than npm.  The stand-in does what Cypress documents of `Cypress.Commands.add`, of `cy.env`
// (and of `Cypress.env`, which older ones have instead), of `cy.request`, `cy.wait`, `cy.wrap` and
// `.then`, and of the event "fail": commands are queued, what a callback queues runs
// before what was queued after it, and the first that fails ends the test.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync } from "node:fs";
import { createServer } from "node:http";
import { beforeEach, test } from "node:test";
import { Relay } from "relay-client";
import { mistype, refuseAs, sendAs } from "./refusals.mjs";

/** @typedef {{ then: (next: (value: any) => unknown) => Chain, [name: string]: any }} Chain */

let queue = Promise.resolve();
/** @type {Record<string, any>} */
const cy = {};
/** @type {Record<string, any>} */
const more = {}; // what may follow what was yielded
/** @type {(() => unknown)[]} */
const hooks = [];
/** @type {string[]} */
let requests = [];

/**
 * @param {() => unknown} command
 * @returns {Chain}
 */
function queued(command) {
  const done = queue.then(() => inner(command));
  queue = done.then(() => undefined);
  const chain = {
    then: (/** @type {(value: any) => unknown} */ next) =>
      queued(async () => {
        const value = await done;
        const given = await inner(() => next(value));
        return given === undefined ? value : given;
      }),
  };
  const named = Object.entries(more).map(([name, one]) => [
    name,
    (/** @type {unknown[]} */ ...given) => queued(async () => one(await done, ...given)),
  ]);
  return Object.assign(chain, Object.fromEntries(named), { yielded: done });
}

/** @param {() => any} callback */
async function inner(callback) {
  const outer = queue;
  let mine = Promise.resolve();
  queue = mine;
  let given;
  try {
    given = callback();
    mine = queue;
  } finally {
    queue = outer;
  }
  await mine;
  return given?.yielded ?? given;
}

cy.env = (/** @type {string[]} */ names) =>
  queued(() => Object.fromEntries(names.map((name) => [name, process.env[name]])));
/** @type {((error: Error) => void)[]} */
let failing = []; // listeners to "fail"
cy.on = (/** @type {string} */ event, /** @type {(error: Error) => void} */ listener) => {
  assert.equal(event, "fail");
  failing.push(listener);
};
cy.off = (/** @type {string} */ _, /** @type {(error: Error) => void} */ listener) => {
  failing = failing.filter((one) => one !== listener);
};
cy.wrap = (/** @type {unknown} */ value) => queued(() => Promise.resolve(value));
cy.wait = (/** @type {number} */ time) =>
  queued(() => new Promise((done) => setTimeout(() => done(time), time)));
cy.request = (/** @type {any} */ { method, url, headers, qs, body, ...options }) =>
  queued(async () => {
    const { timeout, failOnStatusCode, followRedirect = true } = options;
    assert.equal(failOnStatusCode, false);
    requests.push(`${method} ${new URL(url).pathname}`);
    const answer = await fetch(`${url}${qs ? `?${new URLSearchParams(qs)}` : ""}`, {
      method,
      headers: { ...headers, ...(body && { "Content-Type": "application/json" }) },
      body: body ? JSON.stringify(body) : null,
      redirect: followRedirect ? "follow" : "manual",
      signal: AbortSignal.timeout(timeout),
    });
    const said = await answer.text();
    const isJson = answer.headers.get("Content-Type")?.split(";")[0]?.endsWith("json");
    const read = isJson ? JSON.parse(said) : said;
    return { status: answer.status, headers: Object.fromEntries(answer.headers), body: read };
  });

/** @type {Record<string, any>} */
const runner = {
  Commands: {
    add(/** @type {string} */ name, /** @type {(...given: any[]) => unknown} */ command) {
      cy[name] = (/** @type {any[]} */ ...given) => queued(() => command(...given));
    },
  },
};
Object.assign(globalThis, {
  cy,
  Cypress: runner,
  afterEach: (/** @type {() => unknown} */ hook) => hooks.push(hook),
});
await import("relay-client/cypress");

const relay = new Relay();
const cases = JSON.parse(readFileSync(new URL("../../cases.json", import.meta.url), "utf-8"));

/** @param {() => unknown} body */
async function asATest(body) {
  queue = Promise.resolve();
  requests = [];
  failing = [];
  try {
    await inner(body);
  } catch (error) {
    for (const listener of failing) listener(/** @type {Error} */ (error));
    throw error;
  } finally {
    queue = Promise.resolve();
    for (const hook of hooks) await inner(hook);
  }
}

beforeEach(() => {
  queue = Promise.resolve();
});

test("an inbox is made, mail is waited for, and the inbox ends with the test", async () => {
  /** @type {any} */
  let message;
  let address = "";
  let minutes = 0;
  let enumerable = "";
  await asATest(() => {
    cy.relayInbox({ ttl: 5 }).then((/** @type {any} */ inbox) => {
      address = inbox.address;
      enumerable = Object.keys(inbox).join();
      assert.ok("sessionToken" in inbox);
      minutes = (inbox.expiresAt.getTime() - Date.now()) / 60_000;
      return cy.wrap(
        relay.send({
          from: "a@shop.example",
          to: address,
          subject: "Welcome",
          text: "Code 271828 https://shop.example/activate?token=1",
        }),
      );
    });
    cy.waitForMail({ subject: "Welcome" }).then((/** @type {any} */ found) => {
      message = found;
    });
  });
  assert.ok(minutes > 4 && minutes <= 5.1);
  assert.equal(enumerable, "address,expiresAt"); // of a test that fails a token is printed nowhere
  assert.equal(message.code, "271828");
  assert.equal(message.link("/activate"), "https://shop.example/activate?token=1");
  assert.equal(message.headers.get("subject"), "Welcome");
  assert.equal(requests.at(-1), `DELETE /api/v1/mailboxes/${address}`);
  await assert.rejects(relay.mailbox(address).messages(), /404/);
});

test("a wait in vain says what came; it waits at the inbox that is named", async () => {
  let minutes = 0;
  await assert.rejects(
    asATest(() => {
      cy.relayInbox().then((/** @type {any} */ inbox) => {
        cy.request({
          method: "GET",
          url: `${process.env["RELAY_URL"]}/api/v1/mailboxes/${inbox.address}`,
          headers: { Authorization: `Bearer ${process.env["RELAY_TOKEN"]}` },
          timeout: 5_000,
          failOnStatusCode: false,
        }).then((/** @type {any} */ { body }) => {
          minutes = (Date.parse(body.expires_at) - Date.now()) / 60_000;
        });
        cy.wrap(relay.send({ from: "a@shop.example", to: inbox.address, subject: "Welcome", text: "x" }));
        cy.waitForMail();
        cy.relayInbox();
        cy.waitForMail({ inbox, subject: "Reset", timeout: 200 });
      });
    }),
    /^WaitTimeout: waited 0\.2 s for mail with 'Reset' in the subject; 1 other came:\n {2}20\S+ from a@shop\.example: 'Welcome'$/,
  );
  assert.equal(requests.filter((one) => one.startsWith("DELETE")).length, 2);
  assert.ok(minutes > 50 && minutes <= 60.1, `it would live for ${minutes} min if the run were killed`);
});

test("a regular expression is waited for, by a call for each message", async () => {
  let subject = "";
  await asATest(() => {
    cy.relayInbox().then((/** @type {any} */ inbox) => {
      for (const one of ["Welcome", "Order 7"]) {
        const mail = { from: "a@shop.example", to: inbox.address, subject: one, text: "x" };
        cy.wrap(null).then(() => relay.send(mail).then(([sent]) => sent?.wait("sent")));
      }
      cy.waitForMail({ subject: /Order \d/ }).then((/** @type {any} */ message) => {
        ({ subject } = message);
      });
    });
  });
  assert.equal(subject, "Order 7");
  assert.equal(requests.filter((one) => one.includes("/wait")).length, 2);
});

test("a wait in vain says who was refused since the inbox was made", async () => {
  let refusal = "";
  await assert.rejects(
    asATest(() => {
      cy.relayInbox().then(async (/** @type {any} */ { address }) => {
        await refuseAs("another-test", `ada.${address}`);
        refusal = await mistype(address);
      });
      cy.waitForMail({ timeout: 100 });
    }),
    (error) => {
      assert.equal(String(error), `WaitTimeout: waited 0.1 s for any mail; nothing came; ${refusal}`);
      return true;
    },
  );
});

test("a wait in vain says what was captured for the inbox's name elsewhere", async () => {
  let captured = "";
  await assert.rejects(
    asATest(() => {
      cy.relayInbox().then(async (/** @type {any} */ { address }) => {
        captured = `${address}.example`;
        await sendAs("app", captured);
      });
      cy.waitForMail({ timeout: 100 });
    }),
    (error) => {
      const said = "mail to 1 other recipient was captured since the inbox was made";
      assert.match(String(error), new RegExp(`; nothing came; ${said}: ${captured}$`));
      return true;
    },
  );
});

/** @param {(key: string | undefined) => Promise<void>} body */
async function asKey(body) {
  const before = process.env.RELAY_TOKEN;
  const made = await fetch(`${process.env.RELAY_URL}/api/v1/keys`, {
    method: "POST",
    headers: { Authorization: `Bearer ${before}`, "Content-Type": "application/json" },
    body: JSON.stringify({ owner: "cypress", scopes: ["read", "send"] }),
  });
  process.env.RELAY_TOKEN = (await made.json()).token;
  try {
    await body(before);
  } finally {
    process.env.RELAY_TOKEN = before;
  }
}

test("a captured mailbox is waited for before its first mail", async () => {
  const address = `cypress-${Date.now()}@customer.example`;
  const inbox = { address, sessionToken: null };
  const sends = async () => {
    while (requests.length === 0) await new Promise((done) => setTimeout(done, 10));
    await sendAs("shop", address);
  };
  /** @type {any[]} */
  const came = [];
  const waits = () => cy.waitForMail({ inbox }).then((/** @type {any} */ one) => void came.push(one));
  await Promise.all([asATest(waits), sends()]);
  assert.deepEqual(
    came.map(({ subject }) => subject),
    ["Reset"],
  );
  const other = { inbox: { ...inbox, address: `not-${address}` }, timeout: 10 };
  await assert.rejects(
    asATest(() => cy.waitForMail(other)),
    /waited 0.01 s for any mail; nothing came, so it has no mailbox yet/,
  );
});

test("a key is told that captured mail is the administrator's", () =>
  asKey(async () => {
    const inbox = { address: "ada@customer.example", sessionToken: null };
    await assert.rejects(
      asATest(() => cy.waitForMail({ inbox })),
      /404 mailbox-not-found: .* Captured mail opens only to the administrator's token\./,
    );
    await assert.rejects(
      asATest(() => cy.relayInbox().then(() => cy.waitForMail({ timeout: 10 }))),
      /nothing came\n.*not shown to an API key/,
    );
  }));

test("nobody is told of captured mail without a token", async () => {
  const { RELAY_TOKEN } = process.env;
  process.env.RELAY_TOKEN = "";
  try {
    await assert.rejects(
      asATest(() => cy.relayInbox().then(() => cy.waitForMail({ timeout: 10 }))),
      /; nothing came\n.* is not shown without a token\. Look for it on the relay's page/,
    );
  } finally {
    process.env.RELAY_TOKEN = RELAY_TOKEN;
  }
});

test("a wait in vain names what has just come", async () => {
  let lists = 0;
  await at(
    ({ url = "" }, response) => {
      const isList = url.includes("/messages?");
      const isParsed = isList && ++lists > 2;
      const parsed = isParsed
        ? { subject: "Welcome", has_attachments: false }
        : { subject: null, has_attachments: null };
      const entry = { id: "1", from_address: null, received_at: "2030-01-01T00:00:00Z" };
      const listed = [{ ...entry, ...parsed }];
      const said = url.includes("/wait") ? null : isList ? listed : [];
      response.writeHead(200, { "Content-Type": "application/json" }).end(JSON.stringify(said));
    },
    async () => {
      const inbox = { address: "a@b.example", sessionToken: null };
      await assert.rejects(
        asATest(() => cy.waitForMail({ inbox, timeout: 0 })),
        /1 other came:\n.*: 'Welcome'$/,
      );
    },
  );
});

test("a wait in vain at a relay that cannot say who was refused says what came", async () => {
  await at(
    ({ url = "" }, response) => {
      const said = url.includes("/wait") ? "null" : "[]";
      const status = /\/(refused|captured)\b/.test(url) ? 500 : 200;
      response.writeHead(status, { "Content-Type": "application/json" }).end(said);
    },
    async () => {
      const inbox = { address: "a@b.example", sessionToken: null };
      await assert.rejects(
        asATest(() => cy.waitForMail({ inbox, timeout: 0 })),
        {
          message: "waited 0 s for any mail; nothing came",
        },
      );
      const [refused, captured] = requests.slice(-2);
      assert.equal(refused, "GET /api/v1/mailboxes/a@b.example/refused");
      assert.equal(captured, "GET /api/v1/mailboxes/a@b.example/captured");
    },
  );
});

test("a wait that would never end is refused at once", async () => {
  await assert.rejects(
    asATest(() => {
      cy.relayInbox();
      cy.waitForMail({ timeout: NaN });
    }),
    /^RelayError: a time to wait is a number of milliseconds/,
  );
});

test("a refusal is said, and so is that there is no inbox", async () => {
  await assert.rejects(
    asATest(() => cy.waitForMail()),
    /call cy\.relayInbox\(\) first/,
  );
  await assert.rejects(
    asATest(() => cy.waitForMail({ inbox: { address: "no@relay.localhost", sessionToken: null } })),
    /^Refused: 404 mailbox-not-found: .* \(no@relay\.localhost\)$/,
  );
});

for (const { made, wanted, problem, says } of cases.refused) {
  test(`a refusal says: ${says}`, () => {
    const makes = made.expires_at !== undefined;
    return at(
      ({ method }, response) => {
        const inbox = { address: "jane@shop.example", session_token: null, ...made };
        const isMade = makes && method === "POST";
        response.setHeader("Content-Type", "application/json");
        response.statusCode = isMade ? 201 : 400;
        response.end(JSON.stringify(isMade ? inbox : { type: `/problems/${problem}`, detail: "No." }));
      },
      async () => {
        const { local_part: localPart, domain } = wanted;
        const body = () => {
          cy.relayInbox({ localPart, domain });
          if (makes) cy.waitForMail();
        };
        await assert.rejects(asATest(body), { message: `400 ${problem}: ${says}` });
      },
    );
  });
}

test("an inbox that is gone already ends no other test", async () => {
  await asATest(() => {
    cy.relayInbox().then((/** @type {any} */ inbox) =>
      cy.wrap(relay.mailbox(inbox.address).close({ strict: true })),
    );
  });
  assert.equal(requests.filter((one) => one.startsWith("DELETE")).length, 1);
  await asATest(() => cy.relayInbox());
});

test("without cy.env, which is new, settings are those of Cypress.env", async () => {
  const { env } = cy;
  delete cy["env"];
  const asked = new Set();
  runner["env"] = (/** @type {string} */ name) => {
    asked.add(name);
    return process.env[name];
  };
  try {
    await asATest(() => cy.relayInbox());
  } finally {
    cy["env"] = env;
    delete runner["env"];
  }
  assert.deepEqual([...asked], ["RELAY_URL", "RELAY_TOKEN"]);
});

test("a RELAY_URL that can be none's is named", async () => {
  const { RELAY_URL: url } = process.env;
  process.env["RELAY_URL"] = "localhost:8025";
  try {
    await assert.rejects(
      asATest(() => cy.relayInbox()),
      {
        message: "RELAY_URL must begin with http:// or https:// and a host: 'localhost:8025'",
      },
    );
  } finally {
    process.env["RELAY_URL"] = url;
  }
});

/**
 * @param {import("node:http").RequestListener} answer
 * @param {() => Promise<void>} body
 */
async function at(answer, body) {
  const server = createServer(answer).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { RELAY_URL: url } = process.env;
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  process.env["RELAY_URL"] = `http://127.0.0.1:${port}`;
  try {
    await body();
  } finally {
    process.env["RELAY_URL"] = url;
    server.close();
    server.closeAllConnections();
  }
}

const WHERE =
  "Cypress's variables RELAY_URL and RELAY_TOKEN (CYPRESS_RELAY_URL in a shell) say where the relay " +
  "is and what opens it; without RELAY_URL it is looked for at http://127.0.0.1:8025, where 'relay up' starts one";

test("what gets no answer, or is not let in, names the variables; no other failure does", async () => {
  let port = 0;
  await at(
    ({ socket }) => {
      port = socket.localPort ?? 0;
      socket.destroy();
    },
    () =>
      assert.rejects(
        asATest(() => cy.relayInbox()),
        (error) => {
          assert.ok(error instanceof Error);
          assert.equal(error.message, `fetch failed\n${WHERE}`);
          return true;
        },
      ),
  );
  assert.ok(port > 0);
  await at(
    (_, response) =>
      response
        .writeHead(401, { "Content-Type": "application/json" })
        .end('{"type":"urn:x:unauthorized","detail":"no"}'),
    () =>
      assert.rejects(
        asATest(() => cy.relayInbox()),
        { message: `401 unauthorized: no\n${WHERE}` },
      ),
  );
  await assert.rejects(
    asATest(() => {
      cy.relayInbox();
      cy.wrap(null).then(() => {
        throw new Error("the page is blank");
      });
    }),
    { message: "the page is blank" },
  );
});

for (const { status, headers, body, error } of cases.no_relay) {
  test(`no relay: ${error}`, async () => {
    await at(
      (_, response) => response.writeHead(status, headers).end(body),
      () =>
        assert.rejects(
          asATest(() => cy.relayInbox()),
          { message: `${error}\n${WHERE}` },
        ),
    );
  });
}

test("an address that is in no path ends no other test", async () => {
  const body = '{"address":"\\ud800@b","session_token":null,"expires_at":"2030-01-01T00:00:00Z"}';
  await at(
    (_, response) => response.writeHead(201, { "Content-Type": "application/json" }).end(body),
    () =>
      assert.rejects(
        asATest(() => cy.relayInbox()),
        /^Refused: 201 unknown: no relay answered/,
      ),
  );
});

test("a relay that is overloaded is asked again for what does no harm twice", async () => {
  const json = { "Content-Type": "application/json" };
  const statuses = [503, 502, 500];
  await at(
    (asked, response) => {
      const status = asked.method === "GET" ? (statuses.shift() ?? 418) : 503;
      response.writeHead(status, json).end("{}");
    },
    async () => {
      const inbox = { address: "a@b.example", sessionToken: null };
      await assert.rejects(
        asATest(() => cy.waitForMail({ inbox, timeout: 5_000 })),
        /^Refused: 500/,
      );
      assert.deepEqual(statuses, []);
      await assert.rejects(
        asATest(() => cy.relayInbox()),
        /^Refused: 503/,
      );
      assert.equal(requests.length, 1);
    },
  );
});

test("the README's test runs", async () => {
  const readme = readFileSync(new URL("../README.md", import.meta.url), "utf-8");
  const program = /<!-- cypress -->\n```\w+\n([^]*?)```/.exec(readme)?.[1];
  assert.ok(program);
  /** @type {string[]} */
  const visited = [];
  cy.visit = (/** @type {string} */ url) => queued(() => visited.push(url));
  cy.get = cy.contains = (/** @type {string} */ what) => queued(() => what);
  more.type = (/** @type {string} */ _, /** @type {string} */ address) =>
    relay.send({
      from: "a@shop.example",
      to: address,
      subject: "Welcome",
      text: "http://shop.example/activate",
    });
  more.click = () => undefined;
  /** @type {(() => unknown)[]} */
  const bodies = [];
  new Function("it", program)((/** @type {string} */ _, /** @type {() => unknown} */ body) =>
    bodies.push(body),
  );
  for (const body of bodies) await asATest(body);
  assert.deepEqual(visited, ["/sign-up", "http://shop.example/activate"]);
});
