// Accounts: who there is, what mail waits for them, and what of the budget is used.

import { get, page as pageOf, pause, send } from "/ui/calls.js";
import { button, doing, fill, h, lasting, number, Pages, problem, say, Table, when } from "/ui/dom.js";

export const title = "Accounts";
export const scope = "send";

const EVERY = 2000; // ms
const ACTS = { provisioned: ["resend", "suspend"], active: ["recover", "suspend"], suspended: ["unsuspend"] };

export function open(place, page) {
  const trouble = problem();
  const table = new Table("Accounts, newest first", ["Login", "Email", "Status", "Since", "Command"], { none: "No account yet.", id: "accounts" });
  const show = (one, first = false) => table.add(String(one.id), (row) => fillRow(row, one, act), null, first);
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), (items, fresh) => {
    if (fresh) table.clear();
    items.forEach((one) => show(one));
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
  place.append(h("section", { "aria-label": "Accounts" }, form, trouble, table.element, pages.element));
  pages.start("/api/v1/accounts?limit=50").catch((error) => page.signal.aborted || say(trouble, error.message));
}

function fillRow(row, one, act) {
  fill(row, [one.login, one.email, undefined, when(one.status_changed_at ?? one.created_at)]);
  if (row.dataset.status === one.status) return;
  row.dataset.status = one.status;
  row.cells[2].className = `status ${one.status}`;
  say(row.cells[2], one.status);
  row.cells[4].replaceChildren(...(ACTS[one.status] ?? []).flatMap((verb) => [button(verb, act(one.id, verb), { ariaDescription: one.login }), " "]));
}

// What the collector does ------------------------------------------------------------------------------

function makeCollector(page) {
  const trouble = problem();
  const waiting = h("p", { class: "facts", id: "collector" });
  const budget = h("div", { id: "budget" });
  (async () => {
    while (!page.signal.aborted) {
      if (!document.hidden) {
        try {
          const seen = await get("/api/v1/collector", { signal: page.signal });
          const oldest = seen.oldest_seconds === null ? "" : ` · the oldest for ${lasting(seen.oldest_seconds)}`;
          say(waiting, `${number(seen.activations)} activation and ${number(seen.recoveries)} recovery letters wait${oldest} · ${number(seen.parked)} for accounts that they do not fit now · ${number(seen.batches)} batches with ${number(seen.letters)} letters since this start`);
          showBudget(budget, seen.budget);
          say(trouble, "");
        } catch (error) {
          if (!page.signal.aborted) say(trouble, error.message);
        }
      }
      await pause(EVERY, page.signal);
    }
  })();
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
