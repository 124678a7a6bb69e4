// Accounts: who there is, what mail waits for them, and what of the budget is used.

import { every, get, page as pageOf, send } from "/ui/calls.js";
import { button, doing, fill, h, keepFocus, lasting, number, Pages, problem, say, Table, when } from "/ui/dom.js";

export const title = "Accounts";
export const scope = "accounts";

const EVERY = 2000; // ms
const PAGE = 50; // rows
const ACTS = { provisioned: ["resend", "suspend"], active: ["recover", "suspend"], suspended: ["unsuspend"] };

export function open(place, page) {
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const table = new Table("Accounts, newest first", ["Login", "Email", "Status", "Since", "Command"], { none: "No account yet.", id: "accounts" });
  const show = (one, first = false) => table.add(String(one.id), (row) => fillRow(row, one, act), null, first);
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), (items, fresh) => {
    if (fresh) table.show(items, (one) => String(one.id), (row, one) => fillRow(row, one, act));
    else items.forEach((one) => show(one));
  });
  const act = (id, verb) => doing(trouble, async () => show(await send("POST", `/api/v1/accounts/${id}/${verb}`)));
  const form = h("form", { onsubmit: doing(trouble, async () => {
    show(await send("POST", "/api/v1/accounts", Object.fromEntries(new FormData(form))), true);
    form.reset();
  }) },
    h("label", { text: "Email " }, h("input", { name: "email", required: true, autocapitalize: "none" })),
    h("label", { text: "Login " }, h("input", { name: "login", required: true, autocapitalize: "none" })),
    h("button", { text: "Make an account" }));
  if (page.may("admin")) place.append(makeCollector(page));
  place.append(h("section", { "aria-label": "Accounts" }, form, trouble, outage, table.element, pages.element));
  // Rows that came by "More" are left alone: a list that jumps cannot be read.
  every(EVERY, page.signal, async () => table.rows.size > PAGE || pages.start(`/api/v1/accounts?limit=${PAGE}`), (text) => say(outage, text));
}

function fillRow(row, one, act) {
  fill(row, [one.login, one.email, undefined, when(one.status_changed_at ?? one.created_at)]);
  if (row.dataset.status === one.status) return;
  row.dataset.status = one.status;
  row.cells[2].className = `status ${one.status}`;
  say(row.cells[2], one.status);
  const buttons = (ACTS[one.status] ?? []).flatMap((verb) => [button(verb, act(one.id, verb), { ariaDescription: one.login }), " "]);
  keepFocus(row.cells[4], () => row.cells[4].replaceChildren(...buttons), () => buttons[0]);
}

// What the collector does ------------------------------------------------------------------------------

function makeCollector(page) {
  const trouble = problem();
  const waiting = h("p", { class: "facts", id: "collector" });
  const budget = h("div", { id: "budget" });
  every(EVERY, page.signal, async () => {
    const seen = await get("/api/v1/collector", { signal: page.signal });
    const oldest = seen.oldest_seconds === null ? "" : ` · the oldest for ${lasting(seen.oldest_seconds)}`;
    say(waiting, `${number(seen.activations)} activation and ${number(seen.recoveries)} recovery letters wait${oldest} · ${number(seen.parked)} for accounts that they do not fit now · ${number(seen.batches)} batches with ${number(seen.letters)} letters since this start`);
    showBudget(budget, seen.budget);
  }, (text) => say(trouble, text));
  return h("section", { "aria-label": "The collector" }, waiting, budget, trouble);
}

function showBudget(place, budget) {
  if (!budget) {
    if (!place.childElementCount) place.append(h("p", { text: "No budget is set: letters go at once." }));
    return;
  }
  const used = budget.spent / budget.monthly;
  if (!place.querySelector("meter")) {
    place.replaceChildren(h("p", {}, h("label", { text: "Used of the month's budget " }, h("meter", { min: 0, max: 1 })), " ", h("span", { class: "said" })));
  }
  place.querySelector("meter").value = used;
  say(place.querySelector(".said"), `${budget.spent.toFixed(2)} of ${budget.monthly.toFixed(2)} (${Math.round(100 * used)} %), ${number(Math.floor(budget.letters_now))} letters may go at once`);
}
