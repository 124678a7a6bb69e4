// The operator's page: who is signed in, which view is open, and whether the relay is well.
//
// A view is a module with `title`, `scope` (what a key needs for it; null: nothing) and
// `open(place, page)`, which fills `place`.  What it starts ends with `page.signal`.  It may return
// a function that takes a change of address within the view, so that lists stay as they are.

import { ask, get, Refused, send, session } from "/ui/calls.js";
import { button, h, say } from "/ui/dom.js";
import * as accounts from "/ui/accounts.js";
import * as devices from "/ui/devices.js";
import * as inboxes from "/ui/inboxes.js";
import * as logs from "/ui/logs.js";
import * as now from "/ui/now.js";
import * as queue from "/ui/queue.js";
import * as signin from "/ui/signin.js";

const VIEWS = { now, inboxes, queue, accounts, devices, logs };
const place = document.getElementById("view");

const page = { who: null, left: new AbortController(), view: null, move: null, opened: false };

const may = (scope) =>
  scope === null || (page.who !== null && (page.who.scopes.includes(scope) || page.who.scopes.includes("admin")));

// Addresses --------------------------------------------------------------------------------------

function where() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map(decoded);
  return { view, parts: parts.filter(Boolean), values: new URLSearchParams(values ?? "") };
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
  let name = at.view;
  if (name !== "signin" && !Object.hasOwn(VIEWS, name)) name = may("admin") ? "now" : "inboxes";
  let view = name === "signin" ? signin : VIEWS[name];
  if (!may(view.scope)) view = signin;
  if (page.view === view && page.move && page.move(at) !== false) return;
  page.left.abort();
  page.left = new AbortController();
  page.view = view;
  page.move = null;
  document.title = `${view.title} · Relay`;
  for (const link of document.querySelectorAll("#views a")) {
    link.ariaCurrent = link.dataset.view === name && view !== signin ? "page" : null;
  }
  const heading = h("h1", { text: view.title, tabindex: "-1" });
  place.replaceChildren(heading);
  const signal = page.left.signal;
  page.move = view.open(place, { ...at, who: page.who, signal, may, enter, leave }) ?? null;
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
  page.who = who;
  showWho();
  page.view = null;
  open();
}

async function enter(token) {
  const who = await send("POST", "/api/v1/session", { token }, { free: true });
  if (where().view === "signin") history.replaceState(null, "", "#/");
  become(who);
}

async function leave() {
  await send("DELETE", "/api/v1/session").catch(() => {});
  become(null);
}

session.over = () => page.who !== null && become(null);

// Another tab may have signed in or out, the key been revoked, the relay been away at first.
async function checkWho() {
  const before = page.who;
  const found = await get("/api/v1/session", { free: true });
  const who = found.scopes.length ? found : null;
  if (page.who === before && JSON.stringify(who) !== JSON.stringify(before)) become(who);
}

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
  const who = await get("/api/v1/session", { free: true });
  page.who = who.scopes.length ? who : null;
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
