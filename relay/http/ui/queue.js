// Queue: outbound mail by status, priority and destination; one message's whole story; who gets none.

import { every, get, page as pageOf, query, send } from "/ui/calls.js";
import { button, doing, fill, h, keepFocus, lasting, number, Pages, problem, say, settled, Table, when } from "/ui/dom.js";

export const title = "Queue";
export const scope = "send";

const STATES = ["queued", "processing", "sent", "failed", "bounced", "cancelled", "held"];
const ACTS = { queued: ["hold", "cancel"], held: ["retry", "cancel"], failed: ["retry"], bounced: ["retry"] };
const EVERY = 2000; // ms
const PAGE = 50; // rows

const choice = (name, text, values) =>
  h("label", { text: `${text} ` }, h("select", { name }, h("option", { value: "", text: "any" }), values.map((value) => h("option", { value, text: value }))));

export function open(place, page) {
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const story = h("article", { id: "story", "aria-labelledby": "story-title", hidden: true });
  const table = new Table("Messages, newest first", ["Queued", "To", "Subject", "Status", "Attempts", "Priority", "Next"], { none: "No message.", id: "outbound" });
  const show = (items, fresh) => {
    if (fresh) table.show(items, (one) => one.id, fillRow, makeRow);
    else for (const one of items) table.add(one.id, (row) => fillRow(row, one), (row) => makeRow(row, one));
  };
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), show);
  const filter = h(
    "form",
    { id: "filter", onsubmit: (submitted) => submitted.preventDefault(), oninput: settled(() => refresh()) },
    choice("status", "Status", STATES),
    choice("priority", "Priority", ["high", "normal", "bulk"]),
    h("label", { text: "Destination " }, h("input", { name: "domain", placeholder: "a domain", autocapitalize: "none" })),
    h("label", { text: "Recipient " }, h("input", { name: "recipient", placeholder: "an address", autocapitalize: "none" })),
  );
  const path = () => `/api/v1/outbound${query({ ...Object.fromEntries(new FormData(filter)), limit: PAGE })}`;
  const refresh = () => pages.start(path()).then(() => say(outage, ""), (error) => page.signal.aborted || say(outage, error.message));

  if (page.may("admin")) place.append(makeState(page));
  place.append(
    h("section", { "aria-label": "Messages" }, filter, trouble, outage, story, table.element, pages.element),
    makeSuppressions(page),
  );
  let shown = null;
  const tell = (id) => showStory(story, page, id, () => shown === id, refresh);
  every(EVERY, page.signal, async () => {
    // Rows that came by "More" are left alone: a list that jumps cannot be read.
    if (table.rows.size <= PAGE) await pages.start(path());
    if (!story.hidden && story.childElementCount) await tell(shown); // the first telling is `move`'s
  }, (text) => say(outage, text));

  const move = ({ parts: [id] }) => {
    const fresh = id !== shown;
    shown = id ?? null;
    story.hidden = !shown;
    if (!fresh) return;
    story.replaceChildren();
    say(trouble, "");
    if (shown) {
      tell(shown)
        .then(() => id === shown && story.querySelector("h2").focus())
        .catch((error) => {
          if (page.signal.aborted || id !== shown) return;
          story.hidden = true;
          say(trouble, error.message);
        });
    }
  };
  move(page);
  return move;
}

function makeRow(row, one) {
  row.cells[2].append(h("a", { href: `#/queue/${one.id}` }));
}

function fillRow(row, one) {
  fill(row, [when(one.created_at), one.recipient ?? "another's", undefined, one.status, one.attempts, one.priority, one.status === "queued" ? when(one.next_retry_at) : ""]);
  say(row.cells[2].firstChild, one.subject ?? one.id);
  row.cells[3].className = `status ${one.status}`;
}

// The whole queue, for the administrator ------------------------------------------------------------

function makeState(page) {
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const counts = h("p", { class: "facts", id: "queue-state" });
  const swap = button("pause all", doing(trouble, async () => show(await send("POST", `/api/v1/queue/${swap.dataset.verb}`))), { hidden: true });
  const held = new Table("Held back by this node", ["Route", "Destination", "At once", "In hand", "Strikes", "Opens in"], { none: "No destination is in trouble.", id: "destinations" });
  const show = (queue) => {
    const hour = Object.entries(queue.last_hour).map(([status, count]) => `${number(count)} ${status}`).join(", ") || "nothing";
    const waiting = Object.entries(queue.by_priority).map(([priority, count]) => `${number(count)} ${priority}`).join(", ");
    const oldest = queue.oldest_due_seconds === null ? "" : ` · the oldest due for ${lasting(queue.oldest_due_seconds)}`;
    say(counts, `${queue.paused ? "Paused · " : ""}${number(queue.queued)} queued (${waiting}) · ${number(queue.due)} due · ${number(queue.processing)} being delivered · ${number(queue.held)} held${oldest} · in the last hour ${hour}`);
    swap.hidden = false; // it is known which of both
    swap.dataset.verb = queue.paused ? "resume" : "pause";
    say(swap, queue.paused ? "resume all" : "pause all");
  };
  every(EVERY, page.signal, async () => {
    show(await get("/api/v1/queue", { signal: page.signal }));
    held.show(await get("/api/v1/queue/destinations", { signal: page.signal }), (one) => `${one.route} ${one.domain}`, (row, one) =>
      fill(row, [one.route, one.domain ?? "(the whole route)", one.window, one.busy, one.strikes, one.opens_in ? lasting(one.opens_in) : "open"]));
  }, (text) => say(outage, text));
  return h("section", { "aria-label": "The whole queue" }, counts, h("p", {}, swap), trouble, outage, held.element);
}

// One message ----------------------------------------------------------------------------------------

// `wanted()`: whether it is still this message that is to be shown.
async function showStory(place, page, id, wanted, refresh) {
  const path = `/api/v1/outbound/${encodeURIComponent(id)}`;
  const [message, events] = await Promise.all([get(path, { signal: page.signal }), get(`${path}/events`, { signal: page.signal })]);
  if (!wanted()) return;
  const shown = JSON.stringify([message, events]);
  if (place.dataset.shown === shown && place.childElementCount) return; // what has the focus keeps it
  place.dataset.shown = shown;
  const trouble = problem();
  const facts = [
    ["Status", message.status], ["To", message.recipient ?? "another's"], ["Priority", message.priority], ["Attempts", message.attempts],
    ["Queued", when(message.created_at)], ["Next attempt", message.status === "queued" ? when(message.next_retry_at) : null], ["Sent", when(message.sent_at)], ["Error", message.error], ["Id", message.id],
  ];
  const attempts = Map.groupBy ? Map.groupBy(events, (one) => one.attempt) : groupBy(events);
  const parts = [
    h("h2", { id: "story-title", tabindex: "-1", text: message.subject ?? "A message" }),
    h("dl", {}, facts.filter(([, value]) => value !== null && value !== "").map(([name, value]) => [h("dt", { text: name }), h("dd", { text: String(value) })]).flat()),
    h("p", { class: "facts" },
      (ACTS[message.status] ?? []).map((verb) => button(verb, doing(trouble, async () => {
        await send("POST", `${path}/${verb}`);
        await refresh();
        await showStory(place, page, id, wanted, refresh);
      }))),
      page.may("admin") ? h("a", { href: `#/logs?text=${id}`, text: "Log lines" }) : "",
      h("a", { href: "#/queue", text: "Close" })),
    trouble,
    h("ol", { class: "attempts" }, [...attempts].map(([attempt, phases]) => h("li", {}, h("strong", { text: `Attempt ${attempt}, ${when(phases[0].at)}` }),
      h("ol", { class: "phases" }, phases.map((one) => h("li", { class: one.code === null || one.code >= 400 ? "bad" : "good" }, h("span", { text: one.phase }), ` ${one.code ?? "no reply"} `, h("small", { text: lasting(one.duration) }))))))),
  ];
  keepFocus(place, () => place.replaceChildren(...parts), () => parts[0]);
}

function groupBy(events) {
  const found = new Map();
  for (const one of events) found.set(one.attempt, [...(found.get(one.attempt) ?? []), one]);
  return found;
}

// Suppressions ---------------------------------------------------------------------------------------

function makeSuppressions(page) {
  const trouble = problem();
  const table = new Table("Addresses that get no mail", ["Address", "Reason", "Since", "Command"], { none: "No address is suppressed.", id: "suppressions" });
  const add = (one, first) => table.add(one.address, (row) => fill(row, [one.address, one.reason, when(one.created_at)]), (row) =>
    row.cells[3].append(button("remove", doing(trouble, async () => {
      await send("DELETE", `/api/v1/suppressions/${encodeURIComponent(one.address)}`);
      table.remove(one.address);
    }), { ariaDescription: one.address })), first);
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), (items) => items.forEach((one) => add(one, false)));
  const form = h("form", { onsubmit: doing(trouble, async () => {
    add(await send("POST", "/api/v1/suppressions", Object.fromEntries(new FormData(form))), true);
    form.reset();
  }) },
    h("label", { text: "Address " }, h("input", { name: "address", required: true, autocapitalize: "none" })),
    h("label", { text: "Reason " }, h("input", { name: "reason" })),
    h("button", { text: "Suppress" }));
  pages.start("/api/v1/suppressions?limit=50").catch((error) => page.signal.aborted || say(trouble, error.message));
  return h("section", { "aria-label": "Suppressions" }, h("h2", { text: "Suppressions" }), form, trouble, table.element, pages.element);
}
