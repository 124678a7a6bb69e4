// Devices: inboxes by depth and age, and the sessions that are open.

import { every, get } from "/ui/calls.js";
import { bytes, fill, h, lasting, number, problem, say, Table } from "/ui/dom.js";

export const title = "Devices";
export const scope = "admin";

const EVERY = 2000; // ms

export function open(place, page) {
  const trouble = problem();
  const counts = h("p", { class: "facts", id: "device-counts" });
  const table = new Table("The fullest inboxes", ["Device", "Blobs", "Size", "Sessions"], { none: "No blob is waiting.", id: "device-inboxes" });
  place.append(h("section", { "aria-label": "Devices" }, counts, trouble, table.element));
  every(EVERY, page.signal, async () => {
    const seen = await get("/api/v1/devices", { signal: page.signal });
    const oldest = seen.oldest_age ? ` · the oldest for ${lasting(seen.oldest_age)}` : "";
    say(counts, `${number(seen.blobs)} blobs (${bytes(seen.bytes)}) in ${number(seen.inboxes)} inboxes${oldest} · ${number(seen.push_sessions)} push and ${number(seen.receive_sessions)} receive sessions open`);
    table.show(seen.fullest, (one) => one.key, (row, one) => fill(row, [one.key, number(one.blobs), bytes(one.bytes), one.sessions]));
  }, (text) => say(trouble, text));
}
