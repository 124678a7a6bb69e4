// Keys: who else may call the relay.  Making one needs the token itself: it outlives this session.

import { Refused, send } from "./calls.js";
import { asking } from "./dialogs.js";
import { button, copyButton, doing, fill, h, input, labelled, Pages, problem, section, Table, when } from "./dom.js";
import { t } from "./strings.js";

export const title = t("API keys");
export const scope = "admin";

const SCOPES = ["read", "send", "accounts", "admin"];
const PLANS = ["free", "pro", "enterprise"];

export function open(place, page) {
  const trouble = problem();
  const made = h("p.facts", { id: "key-made", role: "status" });
  const table = new Table(t("API keys, newest first"), {
    owner: t("Owner"), scopes: t("Scopes"), plan: t("Plan"), senders: t("Sends from"), made: t("Made"), used: t("Last used"), ends: t("Ends"), command: t("Command"),
  }, { none: t("No key yet."), id: "keys" });
  const show = (one, first = false) => table.add(one.id, (row) => fillRow(row, one, revoke), null, first);
  const revoke = (one) => () => asking({ title: t("Revoke the key of {0}?", one.owner), says: t("It opens nothing from then on."), does: t("Revoke"), grave: true, act: async () => {
    await send("DELETE", `keys/${one.id}`);
    if (one.expires_at) table.remove(one.id); // such a key is deleted
    else show({ ...one, revoked_at: new Date().toISOString() });
  } });
  const token = h("input", { name: "confirm", type: "password", autocomplete: "off", required: true });
  const asked = labelled(t("The administrator's token (admin_token in run/relay.json of the data directory)"), token);
  const form = h("form", { id: "make-key", onsubmit: doing(trouble, async () => {
    const given = new FormData(form);
    const wanted = { owner: given.get("owner"), scopes: given.getAll("scopes"), plan: given.get("plan") };
    const senders = given.get("from").split(/[\s,;]+/).filter(Boolean);
    if (senders.length) wanted.from = senders;
    wanted.confirm = token.value.trim();
    token.value = ""; // it stays in no field
    made.replaceChildren();
    try {
      const key = await send("POST", "keys", wanted);
      form.reset();
      show(key, true);
      made.replaceChildren(h("span", `${t("The key of {0}, shown this once:", key.owner)} `), h("output", key.token), copyButton(key.token, t("the key")));
    } catch (error) {
      if (!(error instanceof Refused) || error.problem !== "token-needed") throw error;
      token.focus();
      throw error;
    }
  }) },
    labelled(t("Owner"), input("owner", { required: true })),
    h("fieldset", h("legend", t("Scopes")), SCOPES.map((name) => h("label.check", { lang: "en" }, h("input", { type: "checkbox", name: "scopes", value: name, defaultChecked: name === "read" }), ` ${name}`))),
    labelled(t("Plan"), h("select", { name: "plan" }, PLANS.map((name) => h("option", { value: name, text: name })))),
    labelled(t("From (empty: any address)"), input("from", { placeholder: t("own, @example.org, ann@example.com") })),
    asked,
    h("button", t("Make a key")));
  const pages = new Pages(page.list, (items) => items.forEach((one) => show(one)));
  place.append(section(t("API keys"), form, trouble, made, table.element, pages.element));
  page.well(pages.start("keys?limit=50"), trouble);
}

// What a key may send from; a key that may not send sends from nowhere.
const sendersOf = (one) => {
  if (!one.scopes.some((scope) => ["send", "admin"].includes(scope))) return "";
  return one.from?.map((from) => (from === "own" ? t("own inboxes") : from)).join(", ") ?? t("any address");
};

function fillRow(row, one, revoke) {
  const ends = one.revoked_at ? t("revoked {0}", when(one.revoked_at)) : when(one.expires_at);
  row.cells[1].lang = "en"; // the names of scopes are no words
  fill(row, [one.owner, one.scopes.join(", "), one.plan, sendersOf(one), when(one.created_at), when(one.last_used_at), ends]);
  if (one.revoked_at) row.cells[7].replaceChildren();
  else if (!row.cells[7].childElementCount) row.cells[7].append(button(t("revoke"), revoke(one), { ariaDescription: one.owner }));
}
