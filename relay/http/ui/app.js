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

const page = { who: null, left: new AbortController(), view: null, move: null };

const may = (scope) =>
  scope === null || (page.who !== null && (page.who.scopes.includes(scope) || page.who.scopes.includes("admin")));

// Addresses --------------------------------------------------------------------------------------

function where() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  const [view, ...parts] = path.split("/").map(decodeURIComponent);
  return { view, parts: parts.filter(Boolean), values: new URLSearchParams(values ?? "") };
}

function open() {
  const at = where();
  let name = at.view;
  if (name !== "signin" && !(name in VIEWS)) name = may("admin") ? "now" : "inboxes";
  let view = name === "signin" ? signin : VIEWS[name];
  if (!may(view.scope)) view = signin;
  if (page.view === view && page.move && page.move(at) !== false) return;
  const first = page.view === null;
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
  if (!first) heading.focus({ preventScroll: true });
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

async function enter(token) {
  page.who = await send("POST", "/api/v1/session", { token }, { free: true });
  showWho();
  page.view = null;
  if (where().view === "signin") location.hash = "#/";
  else open();
}

async function leave() {
  await send("DELETE", "/api/v1/session").catch(() => {});
  page.who = null;
  showWho();
  page.view = null;
  open();
}

session.over = () => {
  if (page.who === null) return;
  page.who = null;
  showWho();
  page.view = null;
  open();
};

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
showHealth();
setInterval(showHealth, 10000);
