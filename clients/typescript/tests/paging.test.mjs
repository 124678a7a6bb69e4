// Lists of more than a page, of a relay that is behind a path of somebody's server.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Relay } from "relay-client";
import { MESSAGE } from "./serving.mjs";

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
  const why = /no relay answered: 1000 pages of its list are empty, and it goes on \(GET http:\S+\)$/;
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
