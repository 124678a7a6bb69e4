// Lists of more than a page, of a relay that is behind a path of somebody's server.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Relay } from "relay-client";
import { MESSAGE } from "./serving.mjs";

/** A relay behind a path of somebody's server, with 450 messages; next pages are from its root. */
function paging() {
  const ids = Array.from({ length: 450 }, (_, at) => String(at));
  const empty = /** @type {number[]} */ ([]); // pages that have nothing, by the number of the call
  const state = { ids, most: 200, pages: 0, rows: 0, empty, ends: true };
  /** @param {string | URL | Request} input */
  const fetch = async (input) => {
    const url = new URL(String(input));
    assert.equal(url.pathname, "/below/api/v1/mailboxes/a@b/messages");
    const query = url.searchParams;
    assert.equal(query.get("whole"), "true");
    state.pages += 1;
    const from = Number(query.get("cursor") ?? 0);
    const count = Math.min(Number(query.get("limit")), state.most);
    const to = state.empty.includes(state.pages) ? from : from + count;
    query.set("cursor", String(to));
    query.set("n", String(state.pages)); // each is another
    const rows = ids.slice(from, to).map((one) => ({ ...MESSAGE, id: one }));
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
  const why = /no relay answered: 1000 pages of its list are empty, and it goes on \(GET http:\S+\)$/;
  await assert.rejects(listed(451), why);
  assert.equal(state.pages, 3 + 1_000);
});
