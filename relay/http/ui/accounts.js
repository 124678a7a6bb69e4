// Accounts: who there is, which letters they got, what mail waits for them, and what of the budget
// is used.

import { send } from "./calls.js";
import { button, doing, dotted, fill, filled, h, input, keepFocus, labelled, lasting, number, Pages, problem, say, section, Table, when } from "./dom.js";
import { submitting } from "./dialogs.js";
import { inTerminal } from "./hello.js";
import { locale, named, t } from "./strings.js";

export const title = t("Accounts");
export const scope = "accounts";

const EVERY = 2000; // ms
const PAGE = 50; // rows
const ACTS = { provisioned: ["resend", "suspend"], active: ["recover", "suspend"], suspended: ["unsuspend"] };
const VERBS = { resend: t("resend"), recover: t("recover"), suspend: t("suspend"), unsuspend: t("unsuspend") };

export function open(place, page) {
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const table = new Table(t("Accounts, newest first"), {
    login: t("Login"), email: t("Email"), status: t("Status"), since: t("Since"), letters: t("Letters"), command: t("Command"),
  }, { none: t("No account yet."), id: "accounts" });
  const make = (row, one) => row.cells[4].append(lettersOf(one.id, page));
  const show = (one, first = false) => table.add(String(one.id), (row) => fillRow(row, one, act), (row) => make(row, one), first);
  const pages = new Pages(page.list, (items, fresh) => {
    if (fresh) table.show(items, (one) => String(one.id), (row, one) => fillRow(row, one, act), make);
    else items.forEach((one) => show(one));
  });
  const act = (id, verb) => doing(trouble, async () => {
    show(await send("POST", `accounts/${id}/${verb}`));
    const letters = table.rows.get(String(id)).querySelector("details");
    if (letters.open) letters.ontoggle(); // there is another now
  });
  const form = h("form", { onsubmit: submitting(trouble, async () => {
    show(await send("POST", "accounts", filled(form)), true);
    form.reset();
  }) },
    labelled(t("Email"), input("email", { required: true })),
    labelled(t("Login"), input("login", { required: true })),
    h("button", t("Make an account")));
  if (page.may("admin")) place.append(makeCollector(page));
  table.element.append(inTerminal("accounts"));
  place.append(section(t("Accounts"), form, trouble, outage, table.element, pages.element));
  // Rows that came by "More" are left alone: a list that jumps cannot be read.
  page.every(EVERY, async () => table.rows.size > PAGE || pages.start(`accounts?limit=${PAGE}`), outage);
}

function fillRow(row, one, act) {
  fill(row, [one.login, one.email, undefined, when(one.status_changed_at ?? one.created_at)]);
  if (row.dataset.status === one.status) return;
  row.dataset.status = one.status;
  row.cells[2].className = `status ${one.status}`;
  say(row.cells[2], named(one.status));
  const buttons = (ACTS[one.status] ?? []).flatMap((verb) => [button(VERBS[verb], act(one.id, verb), { ariaDescription: one.login }), " "]);
  keepFocus(row.cells[5], () => row.cells[5].replaceChildren(...buttons), () => buttons[0]);
}

// What an account was mailed, asked for when it is opened; a letter leads to its story.
function lettersOf(id, page) {
  const list = h("ul.plain");
  const opened = h("details", h("summary", t("show")), list);
  opened.ontoggle = async () => {
    if (!opened.open) return;
    try {
      const { letters } = await page.get(`accounts/${id}`);
      list.replaceChildren(...letters.map((one) => h("li",
        page.may("admin") ? h("a", { href: `#/queue/${one.message_id}`, text: named(one.action) }) : named(one.action), " ",
        h("span", { class: `status ${one.status}`, text: named(one.status) }), ` · ${when(one.at)}`)));
      if (!letters.length) list.append(h("li", t("None is kept.")));
    } catch (error) {
      if (!page.signal.aborted) list.replaceChildren(h("li.problem", error.message));
    }
  };
  return opened;
}

// What the collector does ------------------------------------------------------------------------------

function makeCollector(page) {
  const trouble = problem();
  const waiting = h("p.facts", { id: "collector" });
  const budget = h("div", { id: "budget" });
  page.every(EVERY, async () => {
    const seen = await page.get("collector");
    say(waiting, dotted([
      t("{0} activation and {1} recovery letters wait", number(seen.activations), number(seen.recoveries)),
      seen.oldest_seconds === null ? "" : t("the oldest for {0}", lasting(seen.oldest_seconds)),
      t("{0} held, as their account is suspended or has changed", number(seen.parked)),
      t("batches since this start: {0}, letters in them: {1}", number(seen.batches), number(seen.letters)),
    ]));
    showBudget(budget, seen.budget);
  }, trouble);
  return section(t("The collector"), waiting, budget, trouble);
}

function showBudget(place, budget) {
  if (!budget) {
    if (!place.childElementCount) place.append(h("p", t("No budget is set: letters go at once.")));
    return;
  }
  const used = budget.spent / budget.monthly;
  if (!place.querySelector("meter")) {
    place.replaceChildren(h("p", labelled(t("Used of the month's budget"), h("meter", { min: 0, max: 1 })), " ", h("span.said")));
  }
  place.querySelector("meter").value = used;
  const money = (value) => value.toLocaleString(locale, { minimumFractionDigits: 2, maximumFractionDigits: 2 });
  say(place.querySelector(".said"), t("{0} of {1} ({2} %), letters that may go at once: {3}", money(budget.spent), money(budget.monthly), number(Math.round(100 * used)), number(Math.floor(budget.letters_now))));
}
