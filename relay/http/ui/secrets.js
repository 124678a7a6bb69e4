// What scripts of this page hold of its sessions: the page's key, and those of anonymous inboxes.
//
// A session has two secrets.  The cookie no script can read, but the browser sends it to every port
// of the host.  The key is here, where no other port can read it; each call carries it.  Neither
// does anything alone.  The page's key is this tab's, through a reload, and goes with the tab; a new
// tab is given it by another that is open, or asks to sign in.  The key of an inbox is kept for as
// long as the inbox, by this browser.

const PAGE = "relay.page_key";
const INBOXES = "relay.inboxes";

// What this browser, or with `sessionStorage` this tab, keeps; null where there is nothing, or no storage.
export function recall(key, where = "localStorage") {
  try {
    return JSON.parse(self[where].getItem(key));
  } catch {
    return null;
  }
}

export function retain(key, value, where = "localStorage") {
  try {
    self[where].setItem(key, JSON.stringify(value));
  } catch {
    // it is as usual next time
  }
}

// Where in this tab a list or a message, by its address, was left: what is scrolled is there again.
const PLACES = "relay.places";

export const places = {
  of: (href) => recall(PLACES, "sessionStorage")?.[href] ?? null,
  keep(href, place) {
    const others = Object.entries(recall(PLACES, "sessionStorage") ?? {}).filter(([one]) => one !== href);
    retain(PLACES, Object.fromEntries([...others.slice(-20), [href, place]]), "sessionStorage");
  },
  // The same, once: for what is only to outlive a reload.
  take(href) {
    const place = places.of(href);
    if (place) places.keep(href, null);
    return place;
  },
};

let held = null; // where there is no storage

// What to do when another tab signed in or out; the page sets it.
export const tabs = { changed: () => {} };

const channel = "BroadcastChannel" in self ? new BroadcastChannel("relay.page") : null;

export function pageKey() {
  try {
    return sessionStorage.getItem(PAGE) ?? held;
  } catch {
    return held;
  }
}

function store(key) {
  held = key;
  try {
    if (key === null) sessionStorage.clear(); // places of lists, too
    else sessionStorage.setItem(PAGE, key);
  } catch {
    // no storage: it is held until the page is left
  }
}

// Signed in: the other tabs are, too, since they share the cookie.
export function hold(key) {
  store(key);
  channel?.postMessage({ key });
}

// Signed out, in every tab.
export function drop() {
  const over = pageKey();
  store(null);
  if (over) channel?.postMessage({ over });
}

// This key opens nothing any more; what the other tabs have they find out themselves.
export const forget = () => store(null);

// The key of another tab, in so many milliseconds, or null.
export async function handed(milliseconds) {
  if (!channel) return null;
  await new Promise((done) => {
    const timer = setTimeout(done, milliseconds);
    arrived = () => {
      clearTimeout(timer);
      done();
    };
    channel.postMessage({ wanted: true });
  });
  arrived = null;
  return pageKey();
}

let arrived = null;

channel?.addEventListener("message", ({ data }) => {
  const key = pageKey();
  if (data.wanted && key) channel.postMessage({ key });
  if (data.key && data.key !== key) {
    store(data.key);
    if (arrived) arrived();
    else tabs.changed();
  }
  if (data.over && data.over === key) {
    store(null);
    tabs.changed();
  }
});

// Anonymous inboxes ------------------------------------------------------------------------------

// What this browser made without a key: [{address, expires_at, page_key}], newest first.
export const inboxes = () => recall(INBOXES) ?? [];

export const keepInboxes = (list) => retain(INBOXES, list.slice(0, 50));

// The header of a call -----------------------------------------------------------------------------

export function keysFor(path) {
  const [, named] = /^\/api\/v1\/mailboxes\/([^/?]+)/.exec(path) ?? [];
  const own = named && inboxes().find((one) => encodeURIComponent(one.address) === named)?.page_key;
  const keys = [pageKey(), own].filter(Boolean);
  return keys.length ? { "X-Relay-Page-Key": keys.join(", ") } : {};
}
