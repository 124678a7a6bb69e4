// The command: what it prints, and its exit codes.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

const PROGRAM = fileURLToPath(new URL("../dist/esm/cli.js", import.meta.url));

/**
 * @param {string[]} words
 * @param {Record<string, string>} [env]
 * @param {string} [input]
 * @returns {Promise<{ code: number, out: string, err: string }>}
 */
const relayClient = (words, env = {}, input = "") =>
  new Promise((done) => {
    const child = execFile(
      process.execPath,
      [PROGRAM, ...words],
      { env: { ...process.env, ...env } },
      (_, out, err) => done({ code: child.exitCode ?? -1, out, err }),
    );
    child.stdin?.end(input);
  });

test("mail is sent, waited for and read", async () => {
  const made = await relayClient(["inbox", "--ttl", "5"]);
  assert.equal(made.code, 0);
  const inbox = made.out.trim();
  const sent = await relayClient([
    "send",
    "--from",
    "shop@relay.localhost",
    "--to",
    inbox,
    "--subject",
    "Reset",
    "--text",
    "Your code is 271828. https://shop.example/reset?token=1",
  ]);
  assert.match(sent.out, /^[0-9a-f-]{36}\n$/);
  const [waited, code, link, text, raw, messages, none, wrong] = await Promise.all([
    relayClient(["wait", inbox, "--subject", "reset", "--timeout", "5s"]),
    relayClient(["code", inbox]),
    relayClient(["link", inbox, "/reset"]),
    relayClient(["text", inbox]),
    relayClient(["raw", inbox]),
    relayClient(["messages", inbox, "from:shop"]),
    relayClient(["none", inbox, "--timeout", "100ms"]),
    relayClient(["link", inbox, "/welcome"]),
  ]);
  const message = JSON.parse(waited.out);
  assert.deepEqual([message.subject, message.otp], ["Reset", "271828"]);
  const path = `${process.env["RELAY_URL"]}/api/v1/mailboxes/${inbox}/messages/${message.id}`;
  const authorization = `Bearer ${process.env["RELAY_TOKEN"]}`;
  const answer = await fetch(path, { headers: { authorization } });
  const { is_read, has_attachments, error, ...said } = /** @type {any} */ (await answer.json());
  assert.deepEqual([is_read, has_attachments, error], [true, false, null]); // which it leaves out
  said.received_at = new Date(said.received_at).toISOString();
  assert.deepEqual(message, said);
  assert.equal(code.out, "271828\n");
  assert.equal(link.out, "https://shop.example/reset?token=1\n");
  assert.match(text.out, /^Your code is 271828/);
  assert.match(raw.out, /^(?=[^]*\r\n\r\n)[^]*Subject: Reset\r\n/);
  const listed = JSON.parse(messages.out);
  assert.deepEqual(listed, [message]);
  assert.deepEqual([none.code, none.out], [1, ""]);
  assert.match(none.err, /mail came where none was to come/);
  assert.equal(wrong.code, 1);
  assert.match(wrong.err, /no link like '\/welcome' in 'Reset'/);
  assert.equal((await relayClient(["close", inbox])).code, 0);
  for (const words of [
    ["code", inbox, "--timeout", "1"],
    ["none", inbox],
    ["close", inbox],
  ]) {
    const gone = await relayClient(words);
    assert.equal(gone.code, 3, words[0]);
    assert.match(gone.err, /^relay-client: 404 mailbox-not-found: /);
  }
});

test("an anonymous inbox is opened by what --json prints", async () => {
  const anonymous = { RELAY_TOKEN: "" };
  const plain = await relayClient(["inbox"], anonymous);
  assert.match(plain.err, /what --json prints/);
  const inbox = (await relayClient(["inbox", "--json"], anonymous)).out.trim();
  assert.match(inbox, /"session_token":"rs_/);
  assert.ok(Date.parse(JSON.parse(inbox).expires_at) > Date.now());
  const waited = await relayClient(["wait", inbox, "--timeout", "0.1"], anonymous);
  assert.equal(waited.code, 1);
  assert.match(waited.err, /^relay-client: waited 0.1 s for any mail; nothing came\nIf the .* without a token/);
  // So that no word of the command has what opens it, which all users of a machine can read.
  const file = join(await mkdtemp(join(tmpdir(), "relay-client-")), "inbox.json");
  await writeFile(file, `${inbox}\n`);
  const unseen = await Promise.all([
    relayClient(["wait", "-", "--timeout", "0.1"], anonymous, `${inbox}\n`),
    relayClient(["wait", `@${file}`, "--timeout", "0.1"], anonymous),
  ]);
  assert.deepEqual(unseen, [waited, waited]);
  assert.equal((await relayClient(["close", `@${file}`], anonymous)).code, 0);
  await rm(dirname(file), { recursive: true });
  const [none, empty] = await Promise.all([
    relayClient(["wait", `@${file}`], anonymous),
    relayClient(["wait", "-"], anonymous),
  ]);
  assert.deepEqual([none.code, empty.code], [2, 2]);
  assert.match(none.err, /^relay-client: there is no inbox in @.*inbox\.json: .*ENOENT/);
  assert.match(empty.err, /^relay-client: an inbox is an address, or what 'inbox --json' prints/);
});

test("a list has an end, though a relay's pages have none", async () => {
  let pages = 0;
  const server = createServer((_, response) => {
    pages += 1;
    response.setHeader("Link", `</api/v1/mailboxes/a@b/messages?cursor=${pages}>; rel="next"`);
    setTimeout(() => response.end("[]"), 20);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const env = { RELAY_URL: `http://127.0.0.1:${port}` };
  for (const more of [[], ["word"]]) {
    const listed = await relayClient(["messages", "a@b", ...more, "--timeout", "200ms"], env);
    assert.equal(listed.code, 4);
    assert.match(
      listed.err,
      /^relay-client: (the list of a@b has not ended after 0\.2 s|.*takes too long\))\n/,
    );
  }
  server.close();
  server.closeAllConnections();
  assert.ok(pages < 30);
});

test("what answers and is no relay is refused", async () => {
  const page = createServer((_, response) => response.end("<html>")).listen(0, "127.0.0.1");
  await once(page, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (page.address());
  const answer = await relayClient(["inbox", "--url", `http://127.0.0.1:${port}`]);
  page.close();
  page.closeAllConnections();
  assert.equal(answer.code, 3);
  assert.match(
    answer.err,
    /^relay-client: 200 unknown: no relay answered: it is a web page \(\S+ \S+\)\nRELAY_URL or --url.*\n$/,
  );
  const closed = await relayClient(["inbox", "--token", "rk_unknown"]);
  assert.match(closed.err, /^relay-client: 401 .*\n.*--token, say where the relay is.*8025, where 'relay up' starts one\n$/);
});

test("mail that is HTML alone is printed as it reads, all of it", async () => {
  const html = `<p>Your code</p><p>is&nbsp;<b>271828</b>.</p>${"<br>\n".repeat(100_000)}<p>Bye</p>`;
  const message = {
    ...{ id: "1", from_address: null, to: "a@b", subject: null, received_at: "2026-01-01T00:00:00Z" },
    ...{ size: 1, body_text: null, body_html: html, otp: null, links: [], headers: {}, attachments: [] },
  };
  const server = createServer((_, response) => response.end(JSON.stringify(message)));
  await once(server.listen(0, "127.0.0.1"), "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const read = await relayClient(["text", "a@b", "--url", `http://127.0.0.1:${port}`]);
  assert.deepEqual(read, { code: 0, out: "Your code\nis 271828.\nBye\n", err: "" });
  server.close();
  server.closeAllConnections();
});

test("a stranger's mail drives no terminal and no CI from standard error", async () => {
  const evil = "\\u001b[2J\\u009b31m\\u202e##vso[task.x]";
  const entry = `"id":"1","from_address":"${evil}","subject":"${evil}","received_at":"2026-01-01T00:00:00Z"`;
  const more =
    '"to":"a@b","size":1,"body_text":null,"body_html":null,"otp":null,"headers":{},"attachments":[]';
  const message = `{${entry},${more},"links":["https://evil.example/\\n::error::${evil}"]}`;
  const server = createServer((asked, response) =>
    response.end(
      asked.url?.includes("subject=none") ? "null" : asked.url?.includes("/wait?") ? message : `[{${entry}}]`,
    ),
  ).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const url = ["--url", `http://127.0.0.1:${port}`];
  for (const words of [
    ["link", "a@b", "/nope"],
    ["code", "a@b"],
    ["none", "a@b"],
    ["wait", "a@b", "--subject", "none", "--timeout", "100ms"],
    ["wait", "a@b", "--subject", "none\n::error::x\u009b", "--timeout", "100ms"],
    ["wait", "a@b", "--timeout", "\u009b##vso[x]"],
  ]) {
    const { code, err } = await relayClient([...words, ...url]);
    assert.ok(code === 1 || code === 2, err);
    assert.match(err, /vso\[|none/);
    assert.doesNotMatch(err, /\x1b|\x9b|\u202e|##vso\[|^\s*::/m);
  }
  const { err: time } = await relayClient(["wait", "a@b", "--timeout", "2x", ...url]);
  assert.match(time, /--timeout '2x' is no number \(10, 10s, 500ms\)\n/);
  server.close();
  server.closeAllConnections();
});

test("a stranger's mail drives no terminal and no CI from standard output", async () => {
  const evil = "##vso[task.x]##[error]\u009b31m\u202e\u{e0041}##TeamCity[x]";
  const link = `https://shop.example/\n?a=${evil}`;
  const message = {
    ...{ id: "1", from_address: evil, to: evil, subject: evil, received_at: "2026-01-01T00:00:00Z" },
    ...{ size: 1, body_text: evil, body_html: evil, otp: `1\n::error::${evil}`, links: [link] },
    ...{ headers: { [evil]: evil }, attachments: [] },
  };
  const server = createServer(({ url }, response) =>
    response.end(JSON.stringify(url?.includes("/wait?") ? message : [message])),
  ).listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const at = ["a@b", "--url", `http://127.0.0.1:${port}`];
  const [wait, messages, found, code] = await Promise.all(
    ["wait", "messages", "link", "code"].map(async (command) => {
      const { out } = await relayClient([command, ...at]);
      assert.doesNotMatch(out, /[\x9b\u202e]|\udb40|##vso\[|##\[|##teamcity\[|^\s*::|\n[^]/im, command);
      return out;
    }),
  );
  const said = JSON.parse(wait ?? "");
  assert.deepEqual([said.subject, said.links, said.headers], [evil, [link], { [evil]: evil }]);
  assert.deepEqual(JSON.parse(messages ?? ""), [said]);
  assert.match(code ?? "", /^1\\n::error::/);
  assert.equal(new URL(found?.trim() ?? "").host, "shop.example");
  server.close();
  server.closeAllConnections();
});

test("no error has what opens an inbox", async () => {
  const opens = '{"address":null,"session_token":"rs_secret"}';
  const calls = [
    ["wait", opens],
    ["wait", ` ${opens}`],
    ["wait", `'${opens}'`],
    ["wait", '{"address":"a@b","session_token":"rs_secret'],
    ["wait", '{"address":"a@b","session_token":"rs_secret\\nx"}'],
    ["wait", "rs_secret"],
    // Of `npx`, or `npm run`, which print what they run.
    ["wait", `\n> shop@1.0.0 inbox\n> relay-client inbox --json\n\n${opens}`],
    ["close", `a@b.example ${opens}`],
    ["close", `a@b.example"session_token":"rs_secret"`],
    ["rs_secret", "a@b"],
    ["rs_secret", "a@b", "c"],
    ["close", '{"address":"a@b rs_secret","session_token":null}'],
    ["wait", "a@b", opens],
    ["close", "a@b", opens],
    [opens],
    ["inbox", "--token", "rs_secret\nx"],
  ];
  for (const answer of await Promise.all(calls.map((words) => relayClient(words)))) {
    assert.equal(answer.code, 2, answer.err);
    assert.match(answer.err, /^relay-client: \S.*\n.*--help says what there is\n$/);
    assert.ok(!answer.err.includes("rs_secret"), answer.err);
  }
});

test("what cannot be meant says so", async () => {
  const calls = [
    [],
    ["wiat"],
    ["wait"],
    ["wait", "a@b", "c"],
    ["wait", "a@b", "--timeout", "soon"],
    ["send"],
    ["inbox", "--ttl", "long"],
    ["wait", "{}"],
    ["--none"],
    ["wait", "a@b", "--timeout", "-1"],
    ["inbox", "--token", "a\nb"],
    ["inbox", "--url", "localhost:8025"],
    ["wait", "a@b", "--url", "http://["],
  ];
  for (const answer of await Promise.all(calls.map((words) => relayClient(words)))) {
    assert.equal(answer.code, 2);
    assert.match(answer.err, /^relay-client: \S.*\n/);
  }
  const nowhere = ["--url", "http://127.0.0.1:9"];
  for (const words of [
    ["wait", "a@b", "--timeout", "0.1"],
    ["none", "a@b", "--timeout", "0.1"],
    ["close", "a@b"],
  ]) {
    const { code, err } = await relayClient([...words, ...nowhere]);
    assert.equal(code, 4, words[0]);
    assert.match(err, /^relay-client: the relay does not answer .*\n.*say where the relay is/);
  }
  const { out } = await relayClient(["--help"]);
  assert.match(out, /Exit codes: 0/);
  assert.ok(out.split("\n").every((line) => line.length <= 100));
  assert.deepEqual(await relayClient(["help"]), { code: 0, out, err: "" });
  assert.match((await relayClient(["--version"])).out, /^\d+\.\d+\.\d+\n$/);
});
