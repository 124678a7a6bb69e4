// The operator's page: who is signed in, which view is open, and whether the relay is well.
//
// A view is a module with `title`, `scope` (what a key needs for it; null: nothing) and
// `open(place, page)`, which fills `place`.  What it starts ends with `page.signal`.  It may return
// a function that takes a change of address within the view, so that lists stay as they are.  It may
// have `strange(parts, who)`: whether an address of it is not for who is here.

import { ask, get, Refused, send, session } from "/ui/calls.js";
import { button, h, say } from "/ui/dom.js";
import { drop, forget, handed, hold, pageKey, tabs } from "/ui/secrets.js";
import * as accounts from "/ui/accounts.js";
import * as devices from "/ui/devices.js";
import * as keys from "/ui/keys.js";
import * as logs from "/ui/logs.js";
import * as mail from "/ui/mail.js";
import * as now from "/ui/now.js";
import * as queue from "/ui/queue.js";
import * as signin from "/ui/signin.js";

const VIEWS = { now, mail, queue, accounts, devices, keys, logs };
const HANDED = 150; // ms that another tab has to hand its key on, before this one asks to sign in
const place = document.getElementById("view");

const page = { who: null, left: new AbortController(), view: null, move: null, opened: false, said: "" };

const may = (scope) =>
  scope === null || (page.who !== null && (page.who.scopes.includes(scope) || page.who.scopes.includes("admin")));

// Addresses --------------------------------------------------------------------------------------

// `#/inboxes/…` is how older links say `#/mail/…`.
function where() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map(decoded);
  return { view: view === "inboxes" ? "mail" : view, parts: parts.filter(Boolean), values: new URLSearchParams(values ?? "") };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by somebody
  }
}

function open() {
  const at = where();
  if (at.view === "signin" && at.values.has("code")) {
    byLink(at.values.get("code"));
    return;
  }
  let name = at.view;
  if (name !== "signin" && !Object.hasOwn(VIEWS, name)) name = may("admin") ? "now" : "mail";
  let view = name === "signin" ? signin : VIEWS[name];
  if (!may(view.scope) || view.strange?.(at.parts, page.who)) view = signin;
  if (page.view === view && page.move && page.move(at) !== false) return;
  page.left.abort();
  page.left = new AbortController();
  page.view = view;
  page.move = null;
  document.title = `${view.title} · Relay`;
  for (const link of document.querySelectorAll("#views a")) {
    link.ariaCurrent = link.dataset.view === name && view !== signin ? "page" : null;
  }
  document.body.dataset.view = view === signin ? "signin" : name;
  const heading = h("h1", { text: view.title, tabindex: "-1" });
  place.replaceChildren(heading);
  const signal = page.left.signal;
  const { said } = page;
  page.said = "";
  page.move = view.open(place, { ...at, who: page.who, said, signal, may, enter }) ?? null;
  if (page.opened) heading.focus({ preventScroll: true });
  page.opened = true;
}

// Who --------------------------------------------------------------------------------------------

function showWho() {
  const views = document.getElementById("views");
  views.replaceChildren(
    ...Object.entries(VIEWS)
      .filter(([, view]) => may(view.scope))
      .map(([name, view]) => h("a", { href: `#/${name}`, "data-view": name, text: view.title })),
  );
  document.getElementById("who").replaceChildren(
    page.who === null
      ? h("a", { href: "#/signin", text: "Sign in" })
      : button("Sign out", leave, { title: page.who.owner ?? "the administrator" }),
  );
}

function become(who) {
  if (who === null && page.who !== null) page.said = "You are signed out. Sign in to go on.";
  page.who = who;
  showWho();
  page.view = null;
  open();
}

// `credentials`: {token} or {code}.
async function enter(credentials) {
  const { owner, scopes, plan, page_key } = await send("POST", "/api/v1/session", credentials, { free: true });
  hold(page_key);
  if (where().view === "signin") history.replaceState(null, "", "#/");
  become({ owner, scopes, plan });
}

// A one-time link: its code is used up, and stands in no address any more.
async function byLink(code) {
  history.replaceState(null, "", "#/signin");
  try {
    await enter({ code });
  } catch (error) {
    page.said = error.message;
    become(page.who);
  }
}

async function leave() {
  page.left.abort(); // what the view still has to say is said as who one was
  // Where the relay does not answer, the key is gone all the same, so nobody is signed in.
  await send("DELETE", "/api/v1/session", undefined, { free: true }).catch(() => {});
  drop();
  become(null);
}

session.over = () => {
  forget();
  if (page.who !== null) become(null);
};

const signedIn = async () => {
  if (!pageKey()) return null;
  const found = await get("/api/v1/session", { free: true });
  return found.scopes.length ? found : null;
};

// Another tab may have signed in or out, the key been revoked, the relay been away at first.
async function checkWho() {
  const before = page.who;
  const key = pageKey();
  const who = await signedIn();
  if (who === null && key && pageKey() === key) forget();
  if (page.who === before && JSON.stringify(who) !== JSON.stringify(before)) become(who);
}

tabs.changed = () => checkWho().catch(() => {}); // at the next look, then

// Health -----------------------------------------------------------------------------------------

async function showHealth() {
  const line = document.getElementById("health");
  try {
    await ask("/readyz");
    line.className = "ok";
    say(line, "ready");
  } catch (error) {
    line.className = "problem";
    say(line, error.message);
  }
  await checkWho().catch(() => {}); // at the next look, then
}

try {
  if (!pageKey() && !where().values.has("code")) await handed(HANDED);
  page.who = await signedIn();
} catch (error) {
  if (!(error instanceof Refused)) document.getElementById("health").textContent = error.message;
}
showWho();
open();
addEventListener("hashchange", open);
document.querySelector(".skip").addEventListener("click", (pressed) => {
  pressed.preventDefault(); // its address is no view's
  place.focus();
});
showHealth();
setInterval(showHealth, 10000);
