// Keys: who else may call the relay.  Making one needs the token itself: it outlives this session.

import { page as pageOf, Refused, send } from "/ui/calls.js";
import { button, copyButton, doing, fill, h, Pages, problem, say, Table, when } from "/ui/dom.js";

export const title = "Keys";
export const scope = "admin";

const SCOPES = ["read", "send", "accounts", "admin"];
const PLANS = ["free", "pro", "enterprise"];

export function open(place, page) {
  const trouble = problem();
  const made = h("p", { class: "facts", id: "key-made", role: "status" });
  const table = new Table("API keys, newest first", ["Owner", "Scopes", "Plan", "Made", "Revoked", "Command"], { none: "No key yet.", id: "keys" });
  const show = (one, first = false) => table.add(one.id, (row) => fillRow(row, one, revoke), null, first);
  const revoke = (one) => doing(trouble, async () => {
    if (!confirm(`Revoke the key of ${one.owner}? It opens nothing from then on.`)) return;
    await send("DELETE", `/api/v1/keys/${one.id}`);
    show({ ...one, revoked_at: new Date().toISOString() });
  });
  const token = h("input", { name: "confirm", type: "password", autocomplete: "off", required: true });
  const asked = h("label", { text: "The administrator's token (admin_token in run/relay.json of the data directory) " }, token);
  const form = h("form", { id: "make-key", onsubmit: doing(trouble, async () => {
    const given = new FormData(form);
    const wanted = { owner: given.get("owner"), scopes: given.getAll("scopes"), plan: given.get("plan") };
    wanted.confirm = token.value.trim();
    token.value = ""; // it stays in no field
    made.replaceChildren();
    try {
      const key = await send("POST", "/api/v1/keys", wanted);
      form.reset();
      show(key, true);
      made.replaceChildren(h("span", { text: `The key of ${key.owner}, shown this once: ` }), h("output", { text: key.token }), copyButton(key.token, "the key"));
    } catch (error) {
      if (!(error instanceof Refused) || error.kind !== "token-needed") throw error;
      token.focus();
      throw error;
    }
  }) },
    h("label", { text: "Owner " }, h("input", { name: "owner", required: true, autocapitalize: "none" })),
    h("fieldset", {}, h("legend", { text: "Scopes" }), SCOPES.map((name) => h("label", { class: "check" }, h("input", { type: "checkbox", name: "scopes", value: name, defaultChecked: name === "read" }), ` ${name}`))),
    h("label", { text: "Plan " }, h("select", { name: "plan" }, PLANS.map((name) => h("option", { value: name, text: name })))),
    asked,
    h("button", { text: "Make a key" }));
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), (items) => items.forEach((one) => show(one)));
  place.append(h("section", { "aria-label": "Keys" }, form, trouble, made, table.element, pages.element));
  pages.start("/api/v1/keys?limit=50").catch((error) => page.signal.aborted || say(trouble, error.message));
}

function fillRow(row, one, revoke) {
  fill(row, [one.owner, one.scopes.join(", "), one.plan, when(one.created_at), when(one.revoked_at)]);
  if (one.revoked_at) row.cells[5].replaceChildren();
  else if (!row.cells[5].childElementCount) row.cells[5].append(button("revoke", revoke(one), { ariaDescription: one.owner }));
}
