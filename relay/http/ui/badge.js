// How many messages are unread, where it is seen without the page: in its title and icon; and, for
// who asks for it, a word when one comes while the page is not looked at.

import { ask, eventsIn, get, keepUp, query } from "./calls.js";
import { settled } from "./dom.js";
import { senderOf } from "./list.js";

const KEPT = "relay.notify";
export const NEWEST = 50; // unread messages that are looked at, for tags and for who wants to be told of them
export const MOST = 1000; // that a badge counts, as GET /api/v1/quota does
export const LOOK = 15_000; // ms between two looks, whichever view is open
const DOT = '<circle cx="12.5" cy="3.5" r="3.5" fill="#e5342b"/></svg>';

let [shown, count, plain] = ["Relay", null, null];

// The icon, with a dot while something is unread.
async function draw() {
  const link = document.querySelector("link[rel=icon]");
  plain ??= await (await fetch(link.href)).text();
  link.href = `data:image/svg+xml,${encodeURIComponent(count ? plain.replace("</svg>", DOT) : plain)}`;
}

function show() {
  document.title = count ? `(${count}) ${shown}` : shown;
}

export function titled(title) {
  shown = `${title} · Relay`;
  show();
}

export function unread(number) {
  if (String(number || "") === String(count ?? "")) return;
  count = number || null;
  draw().catch(() => {}); // at the next count, then
  show();
}

// What is unread, in whatever inbox: a list is told of its own mail alone.
let since = null;
export async function look(options) {
  const [found, { unread: count }] = await Promise.all([
    get(`messages${query({ q: "is:unread", limit: NEWEST })}`, options),
    get("quota", options),
  ]);
  for (const one of found) if (since && one.received_at > since) came(one, hrefOf(one));
  since = [since ?? "0", found[0]?.received_at ?? "0"].sort().pop();
  unread(counted(count));
  return { found, count };
}

export const counted = (number) => (number >= MOST ? `${MOST - 1}+` : number || "");

// Words of new mail ------------------------------------------------------------------------------

export const notifies = () => "Notification" in self && Notification.permission === "granted" && localStorage.getItem(KEPT) === "yes";

export async function notify(wanted) {
  if (wanted && (!("Notification" in self) || (await Notification.requestPermission()) !== "granted")) return false;
  localStorage.setItem(KEPT, wanted ? "yes" : "no");
  feed();
  return wanted;
}

// Follow all mail, for who wants to be told of it, whichever view is open.  One tab does for all of
// a browser's, since that has six connections to a host; `may`: whether who is here may read it.
let [feeding, allowed] = [null, false];
export function feed(may = allowed) {
  allowed = may;
  feeding?.abort();
  if (!may || !notifies()) return;
  const { signal } = (feeding = new AbortController());
  navigator.locks.request("relay.feed", { signal }, () => keepUp(signal, () => follow(signal), () => {})).catch(() => {}); // it waits no more
}

async function follow(signal) {
  for await (const { kind, data } of eventsIn(await ask("messages/events", { signal }))) {
    if (kind === "new_message") came(data, hrefOf(data));
    recount();
  }
}

const recount = settled(() => look().catch(() => {})); // at the next one, then
const hrefOf = (item) => `#/mail/all/${encodeURIComponent(item.mailbox)}/${item.id}`;
const told = new Set(); // what a list, the feed and a look all find

export function came(item, href) {
  if (!document.hidden || !notifies() || told.has(item.id)) return;
  told.add(item.id);
  const made = new Notification(item.from_name || senderOf(item.from_address), { body: [item.otp, item.subject].filter(Boolean).join(" · "), tag: item.id });
  made.onclick = () => {
    window.focus();
    location.hash = href;
    made.close();
  };
}
