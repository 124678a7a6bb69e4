// What strangers said, as it is shown.

import assert from "node:assert/strict";
import { test } from "node:test";
import { inspect } from "node:util";
import { NotDelivered, Refused, Relay, RelayError, UnexpectedMail, WaitTimeout } from "relay-client";
import { cases, inner } from "./cases.mjs";

const { arrivedAt } = await inner("fixtures");
const { readable } = await inner("readable");
const { inALine, quoted, visible } = await inner("text");

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

for (const { html, text } of cases.readable) {
  test(`both clients read ${JSON.stringify(html)} alike`, () => {
    assert.equal(readable(html), text);
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
    receivedAt: new Date("2026-01-01T10:20:30Z"),
    attachments: Array(20).fill({ filename: `##vso[x]${long}`, contentType: long, size: 8 }),
  };
  const { text: said } = await arrivedAt({
    messages: async (/** @type {number} */ _, /** @type {{ found: unknown[] }} */ { found }) =>
      found.push(message, message),
  });
  assert.ok(said.includes("from \\u{e0041}") && said.includes("…: \\u{e0041}"));
  assert.ok(said.startsWith("10:20:30Z from "));
  const files = [...said.matchAll(/^attachment: (.*)$/gm)].map(([, file = ""]) => file);
  assert.equal(files.length, 20, "ten of each");
  for (const file of files) {
    assert.match(file, /^\\u0023#vso\[x\](\\u\{e0041\})+… \((\\u\{e0041\})+…, 8 B\)$/);
    assert.ok(file.length < 420);
  }
  assert.ok(said.length < 30_000);
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
