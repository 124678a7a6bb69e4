// A relay that goes away, or is none: each call ends with its result or with one clear error.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { createServer as createSocketServer } from "node:net";
import { test } from "node:test";
import { Refused, Relay, Unreachable, WaitTimeout } from "relay-client";
import { cases, inner } from "./cases.mjs";
import { INFO, portOf, serving } from "./serving.mjs";

const { quoted } = await inner("text");
const relay = new Relay();

test("what no relay is says so", async () => {
  for (const { url, error } of cases.urls) {
    assert.throws(() => new Relay({ url }), { name: "RelayError", message: error }, url);
    const { RELAY_URL } = process.env;
    process.env.RELAY_URL = url;
    const message = error.replace("a relay's URL", "RELAY_URL");
    assert.throws(() => new Relay(), { name: "RelayError", message }, url);
    process.env.RELAY_URL = RELAY_URL;
  }
  for (const token of ["rk_se cret", "rk_se\ncret", "rk_s\xe9cret"]) {
    assert.throws(() => new Relay({ token }), /^RelayError: the token has characters that no token has$/);
    assert.throws(() => relay.mailbox("a@b", token), /^RelayError: the inbox's token has characters/);
  }
  assert.equal(relay.mailbox("a@b", "rs_secret\n").sessionToken, "rs_secret");
  const trimmed = ` ${process.env.RELAY_TOKEN}\r\n`;
  assert.ok(await new Relay({ url: ` ${process.env.RELAY_URL}\n`, token: trimmed }).info());
  const began = performance.now();
  const gone = createServer().listen(0, "127.0.0.1");
  await once(gone, "listening");
  const nowhere = `http://127.0.0.1:${portOf(gone)}`;
  await new Promise((done) => gone.close(done));
  await assert.rejects(new Relay({ url: nowhere }).mailbox("a@b.example").wait({ timeout: 300 }), (error) => {
    assert.ok(error instanceof Unreachable);
    assert.match(
      error.message,
      /^the relay does not answer GET http:\/\/127\.0\.0\.1:\d+\/api\/.*wait \(for \d\.\d s: .*ECONNREFUSED/,
    );
    // Of fetch and of this package would all their frames be; which of the test's is what it shows.
    const causes = [];
    for (let { cause } = error; cause instanceof Error; { cause } = cause) causes.push(cause);
    assert.match(String(causes.at(-1)), /ECONNREFUSED/);
    for (const cause of causes) assert.equal(cause.stack, String(cause));
    return true;
  });
  assert.ok(performance.now() - began >= 300, "it was asked again");
});

for (const { status, headers, body, error } of cases.no_relay) {
  test(`no relay: ${error}`, () =>
    serving(
      (_, response) => response.writeHead(status, headers).end(body),
      async (client) => {
        const expected = { name: "Refused", status, problem: "unknown" };
        const message = `${error} (POST ${client.url}/api/v1/mailboxes)`;
        await assert.rejects(client.inbox(), { ...expected, message });
        const asked = `${error} (GET ${client.url}/api/v1/mailboxes/a@b/messages)`;
        await assert.rejects(client.mailbox("a@b").messages(), { ...expected, message: asked });
      },
    ));
}

test("a path that leads to no relay is named, with what was asked there", async () => {
  const { RELAY_URL: url, RELAY_TOKEN: token } = process.env;
  for (const path of ["/api/v1", "/compat/mailpit"]) {
    await assert.rejects(new Relay({ url: `${url}${path}`, token }).inbox(), (error) => {
      assert.ok(error instanceof Refused);
      assert.ok(error.message.endsWith(` (POST ${url}${path}/api/v1/mailboxes)`), error.message);
      return true;
    });
  }
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
      message: /^200 unknown: no relay answered: it says more than 2 MiB \([A-Z]+ http:\S+\)$/,
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
  await serving(
    ({ url }, response) => {
      if (url?.includes("/wait?")) response.end("null");
    },
    async (client) => {
      const inbox = client.mailbox("a@b");
      const began = performance.now();
      await assert.rejects(
        inbox.wait({ timeout: 100 }),
        /^WaitTimeout: .* for any mail; what came cannot be listed: the relay does not answer/,
      );
      await inbox.close();
      assert.ok(performance.now() - began < 6_000);
    },
  );
});

test("who speaks no HTTP is asked once, and the error says who that is", async () => {
  let asked = 0;
  const server = createSocketServer((socket) => {
    asked += 1;
    socket.end("220 mail.example ESMTP\r\n421 no web server\r\n");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${portOf(server)}`;
  await assert.rejects(new Relay({ url, token: "x" }).info(), (error) => {
    const said = `Unreachable: no relay answers at ${url}: it says '220 mail.example ESMTP`;
    assert.ok(String(error).startsWith(said), String(error));
    assert.match(String(error), /', which is not HTTP; a relay's URL is that of its HTTP port, such as h/);
    return true;
  });
  assert.equal(asked, 1);
  server.close();
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
      return status === 200 ? Response.json(INFO) : new Response("busy", { status });
    },
  });
  assert.equal((await client.info()).version, "1");
  assert.deepEqual(answers, []);
});
