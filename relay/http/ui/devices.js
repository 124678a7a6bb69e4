// Devices: inboxes by depth and age, and the sessions that are open.

import { bytes, copyButton, dotted, fill, h, lasting, number, problem, say, section, Table } from "./dom.js";
import { inTerminal } from "./hello.js";
import { t } from "./strings.js";

export const title = t("Devices");
export const scope = "admin";

const EVERY = 2000; // ms

export function open(place, page) {
  const trouble = problem();
  const counts = h("p.facts", { id: "device-counts" });
  const table = new Table(t("The fullest inboxes"), { device: t("Device"), blobs: t("Blobs"), size: t("Size"), sessions: t("Sessions") }, { none: t("No blob is waiting."), id: "device-inboxes" });
  table.element.append(inTerminal("devices"));
  place.append(section(t("Devices"), counts, trouble, table.element));
  page.every(EVERY, async () => {
    const seen = await page.get("devices");
    say(counts, dotted([
      t("Blobs: {0} ({1}), inboxes: {2}", number(seen.blobs), bytes(seen.bytes), number(seen.inboxes)),
      seen.oldest_age ? t("the oldest for {0}", lasting(seen.oldest_age)) : "",
      t("open sessions: push {0}, receive {1}", number(seen.push_sessions), number(seen.receive_sessions)),
    ]));
    table.show(seen.fullest, (one) => one.key,
      (row, one) => fill(row, [undefined, number(one.blobs), bytes(one.bytes), number(one.sessions)]),
      (row, one) => row.cells[0].append(`${one.key} `, copyButton(one.key, t("the key"))));
  }, trouble);
}
