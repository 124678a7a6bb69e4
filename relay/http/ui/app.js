// The operator's page: who is signed in, which view is open, and whether the relay is well.
//
// A view is a module with `title`, `scope` (what a key needs for it; null: nothing) and
// `open(place, page)`, which fills `place`.  What it starts ends with `page.signal`, as do the calls
// by `page.get` and `page.list`; `page.every` and `page.well` fail into an element.  It may return
// a function that takes a change of address within the view, so that lists stay as they are.  It may
// have `strange(parts, who)`: whether an address of it is not for who is here.

import { addressed, ask, every, get, page as list, send, session } from "./calls.js";
import { feed, LOOK, look, titled } from "./badge.js";
import { drafts } from "./dialogs.js";
import { button, h, say } from "./dom.js";
import { keysTo } from "./hotkeys.js";
import { palette } from "./palette.js";
import { drop, forget, handed, hold, pageKey, tabs } from "./secrets.js";
import { choose, language, LANGUAGES, t } from "./strings.js";
import * as accounts from "./accounts.js";
import * as devices from "./devices.js";
import * as domains from "./domains.js";
import * as keys from "./keys.js";
import * as logs from "./logs.js";
import * as mail from "./mail.js";
import * as now from "./now.js";
import * as queue from "./queue.js";
import * as settings from "./settings.js";
import * as signin from "./signin.js";

const VIEWS = { now, mail, queue, accounts, devices, domains, keys, settings, logs };
const HANDED = 150; // ms that another tab has to hand its key on, before this one asks to sign in
const byId = (id) => document.getElementById(id);
const place = byId("view");

const page = { who: null, left: new AbortController(), view: null, move: null, opened: false, said: "" };

const may = (scope) =>
  scope === null || (page.who !== null && (page.who.scopes.includes(scope) || page.who.scopes.includes("admin")));

// Addresses --------------------------------------------------------------------------------------

// `#/inboxes/…` is how older links say `#/mail/…`.
function where() {
  const { parts: [view, ...parts], values } = addressed();
  return { view: view === "inboxes" ? "mail" : view, parts: parts.map(decoded), values };
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
  titled(view.title);
  for (const link of document.querySelectorAll("#views a")) {
    link.ariaCurrent = link.dataset.view === name && view !== signin ? "page" : null;
  }
  document.body.dataset.view = view === signin ? "signin" : name;
  const heading = h("h1", { text: view.title, tabindex: "-1" });
  place.replaceChildren(heading);
  const signal = page.left.signal;
  const { said, done } = page;
  page.said = "";
  page.done = false;
  page.acts = null;
  const own = { // until the view is left
    get: (path) => get(path, { signal }),
    list: (path) => list(path, { signal }),
    every: (milliseconds, once, told) => every(milliseconds, signal, once, (text) => told && say(told, text)),
    well: (promise, told) => promise.catch((error) => signal.aborted || say(told, error.message)),
  };
  page.move = view.open(place, { ...at, ...own, who: page.who, said, done, signal, may, enter, find: () => palette(found), acts: (acts) => (page.acts = acts) }) ?? null;
  if (page.opened) heading.focus({ preventScroll: true });
  page.opened = true;
}

// Who --------------------------------------------------------------------------------------------

const views = byId("views");
function showWho() {
  views.replaceChildren(
    ...Object.entries(VIEWS)
      .filter(([, view]) => may(view.scope))
      .map(([name, view]) => h("a", { href: `#/${name}`, "data-view": name, text: view.title })),
  );
  feed(may("read"));
  byId("who").replaceChildren(
    page.who === null
      ? h("a", { href: "#/signin", text: t("Sign in") })
      : button(t("Sign out"), leave, { title: page.who.owner ?? t("the administrator") }),
  );
}

function become(who) {
  if (who === null && page.who !== null) page.said ||= t("You are signed out. Sign in to go on.");
  if (who === null) drafts.clear();
  page.who = who;
  showWho();
  page.view = null;
  open();
}

// `credentials`: {token} or {code}; `first`: what is opened then.
async function enter(credentials, first = "#/") {
  const { owner, scopes, plan, page_key } = await send("POST", "session", credentials, { free: true });
  hold(page_key);
  if (where().view === "signin") history.replaceState(null, "", first);
  become({ owner, scopes, plan });
}

// A one-time link: its code is used up, and stands in no address any more.
async function byLink(code) {
  history.replaceState(null, "", "#/signin");
  try {
    await enter({ code }, "#/mail"); // who has just started a relay comes for its mail
  } catch (error) {
    // Used before, by another tab perhaps, which is signed in.
    await handed(HANDED);
    page.who = await signedIn().catch(() => page.who);
    if (page.who) history.replaceState(null, "", "#/mail");
    else page.said = error.message;
    become(page.who);
  }
}

async function leave() {
  page.left.abort(); // what the view still has to say is said as who one was
  // Where the relay does not answer, the key is gone all the same, so nobody is signed in.
  await send("DELETE", "session", undefined, { free: true }).catch(() => {});
  drop();
  page.said = t("You are signed out.");
  page.done = true; // nothing is wrong
  become(null);
}

session.over = () => {
  page.left.abort();
  forget();
  if (page.who !== null) become(null);
};

const signedIn = async () => {
  if (!pageKey()) return null;
  const found = await get("session", { free: true });
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
  const line = byId("health");
  const trouble = await ask("/readyz").then(() => "", (error) => error.message);
  line.className = trouble ? "problem" : "ok";
  say(line, trouble || t("ready"));
  setTimeout(showHealth, trouble ? 2000 : 10000);
  checkWho().catch(() => {}); // at the next look, then
}

// What stands in index.html.
document.querySelector(".skip").textContent = t("Skip to the view");
views.ariaLabel = t("Views");
byId("others").ariaLabel = t("Other");
document.querySelector("#others [href='/metrics']").textContent = t("Metrics");

try {
  if (!pageKey() && !where().values.has("code")) await handed(HANDED);
  page.who = await signedIn();
} catch {} // `showHealth` says what
showWho();
open();
addEventListener("hashchange", open);

// Ctrl K, wherever one is; what a view can do besides it says in `page.acts`.
const found = {
  may,
  views: () => [
    ...[...document.querySelectorAll("#views a, #folders a, #inboxes a")].map((link) => ({ title: link.querySelector("span")?.textContent ?? link.textContent, href: link.getAttribute("href"), key: keysTo(link.dataset.view) })),
    { title: t("API reference"), href: "/docs" },
    { title: t("Metrics"), href: "/metrics" },
  ],
  more: async (wanted, options) => (may("admin") ? settings.found(wanted, options) : []),
  actions: () => [
    ...(page.acts?.() ?? []).map((one) => ({ ...one, here: true })),
    ...(may("send") ? queue.acts({ may, get }).map((one) => ({ ...one, kind: t("queue"), here: page.view === queue })) : []),
    page.who ? { title: t("Sign out"), act: leave } : { title: t("Sign in"), act: () => (location.hash = "#/signin") },
    ...Object.entries(LANGUAGES).filter(([code]) => code !== language).map(([code, name]) => ({ title: `${t("Language of this page")}: ${name}`, act: () => choose(code) })),
  ],
};
addEventListener("keydown", (pressed) => {
  if (pressed.key.toLowerCase() !== "k" || !(pressed.ctrlKey || pressed.metaKey) || pressed.shiftKey || pressed.altKey) return;
  pressed.preventDefault();
  palette(found);
});
const find = byId("find"); // what has no Ctrl has this
find.ariaLabel = t("Find or do");
find.title = t("Find or do (Ctrl K, ⌘K)");
find.addEventListener("click", () => palette(found));
document.querySelector(".skip").addEventListener("click", (pressed) => {
  pressed.preventDefault(); // its address is no view's
  place.focus();
});
showHealth();
setInterval(() => may("read") && document.body.dataset.view !== "mail" && look().catch(() => {}), LOOK); // at the next one, then
