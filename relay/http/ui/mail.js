// Mail: inboxes, the list of one, and the message that is read, side by side.
//
// Each state has an address, so that reload, back and a shared link lead to it:
//   #/mail                        everything (a phone: the inboxes)
//   #/mail/all[/MAILBOX/ID]       all mail            #/mail/tag:NAME[/MAILBOX/ID]  what has a tag
//   #/mail/ADDRESS[/ID]           one inbox           #/mail/sent                   what was sent
// with ?q= for a search.  An anonymous inbox is this browser's: its token became a cookie of that
// inbox alone and a key, which the page remembers with the address.

import { ask, clock, eventsIn, every, get, keepUp, page as pageOf, query, send } from "/ui/calls.js";
import { arrange, button, bytes, copyButton, doing, h, keepFocus, lasting, number, Pages, problem, say, settled, when } from "/ui/dom.js";
import { firstMail, howToSignIn } from "/ui/hello.js";
import { keysOf, showKeys } from "/ui/hotkeys.js";
import { MessageList } from "/ui/list.js";
import { divide } from "/ui/panes.js";
import { base, Reader } from "/ui/reader.js";
import { inboxes, keepInboxes } from "/ui/secrets.js";

export const title = "Mail";
export const scope = null;

const EVERY = 5000; // ms between two looks at the list of inboxes
const PAGE = 50; // inboxes
const ROWS = 200; // messages of a page
const UNDO = 6000; // ms in which a deletion can be taken back
const UNREAD = 200; // the most that are counted

const part = encodeURIComponent;
const kept = () => inboxes().filter((one) => new Date(one.expires_at) > clock.now());
const forget = (address) => keepInboxes(kept().filter((one) => one.address !== address));

// Whether nobody who is here may read what the address of the page names.
export function strange([name], who) {
  const at = name && named(name);
  if (!at || who !== null) return false;
  return !at.address || !inboxes().some((one) => one.address === name);
}

// Which list a part of an address names; null: none that there is.
function named(name) {
  if (name.startsWith("tag:")) return { key: name, tag: name.slice(4) };
  if (name.includes("@")) return { key: name, address: name };
  return ["all", "sent"].includes(name) ? { key: name } : null;
}

const quoted = (text) => `"${text.replaceAll('"', "")}"`;

export function open(place, page) {
  const mail = new Mail(place, page);
  mail.move(page);
  return (at) => mail.move(at);
}

class Mail {
  constructor(place, page) {
    this.page = page;
    this.list = null;
    this.going = new Map(); // what is deleted, but for an undo
    this.reader = new Reader(this);
    this.tags = new Set();
    this.rail = makeRail(this);
    this.middle = h("section", { class: "middle", "aria-label": "The inbox" });
    this.toast = h("div", { id: "toast", role: "status" });
    this.element = h("div", { class: "mail" });
    divide(this.element, [this.rail.element, this.middle, this.reader.place]);
    place.append(this.element, this.toast);
    keysOf(this, page.signal);
    page.signal.addEventListener("abort", () => this.left());
    addEventListener("pagehide", () => this.commit(), { signal: page.signal });
  }

  left() {
    this.list?.left.abort();
    this.commit();
  }

  move({ parts: [name, ...rest], values }) {
    const all = this.page.may("read");
    const at = (name && named(name)) ?? (all ? { key: "all" } : null);
    const q = values.get("q") ?? "";
    const key = at?.key;
    if (!this.started || this.list?.at.key !== key) {
      this.started = true;
      this.list?.left.abort();
      this.middle.replaceChildren();
      this.list = at ? new List(this, at, q) : null;
      this.reader.close();
      if (!at) this.middle.append(howToSignIn());
    } else if (this.list && q !== this.list.q) this.list.search(q);
    const [mailbox, id] = at?.address ? [at.address, rest[0]] : rest;
    this.element.dataset.pane = id ? "reader" : !this.list ? "home" : name ? "list" : "rail";
    if (this.list) this.list.rows.mark(id ?? null);
    if (id) {
      this.reader.read(mailbox, id);
      this.reader.around();
    } else this.reader.close();
    this.rail.mark(key);
  }

  near() {
    const { list } = this;
    if (!list) return { newer: null, older: null, back: "#/mail" };
    const index = list.rows.find(this.reading);
    const to = (item) => (index >= 0 && item && list.at.key !== "sent" ? list.hrefOf(item) : null);
    return { newer: to(list.rows.items[index - 1]), older: to(list.rows.items[index + 1]), back: list.href() };
  }

  get reading() {
    return this.reader.reading;
  }

  seen(message) {
    this.list?.rows.patch({ id: message.id, is_read: true });
    this.rail.recount();
  }

  mailboxOf(item) {
    return item.mailbox ?? this.list.at.address;
  }

  async mark(items, isRead) {
    for (const item of items) {
      await send("PATCH", `${base(this.mailboxOf(item))}/messages/${item.id}`, { is_read: isRead });
      this.list?.rows.patch({ id: item.id, is_read: isRead });
    }
    this.rail.recount();
  }

  async unread(message) {
    await this.mark([message], false);
    location.hash = this.list.href();
  }

  // Gone from the list at once, and from the relay when nobody took it back.
  remove(items) {
    this.commit();
    const { list } = this;
    const opened = items.some((item) => item.id === this.reading);
    const near = this.near();
    const taken = items.map((item) => ({ item, mailbox: this.mailboxOf(item), index: 0 }));
    keepFocus(this.element, () => {
      for (const one of taken) {
        this.going.set(one.item.id, one);
        const known = list.rows.known.get(one.item.id);
        one.index = list.rows.remove(one.item.id);
        one.item = known ?? one.item;
      }
    }, () => list.heading);
    list.state();
    this.timer = setTimeout(() => this.commit(), UNDO);
    this.toast.replaceChildren(
      h("span", { text: items.length === 1 ? "Deleted." : `${items.length} messages deleted.` }),
      button("Undo", () => this.undo(taken, list, opened ? location.hash : null), { title: "Undo (z)" }),
    );
    this.undoing = () => this.toast.querySelector("button")?.click();
    if (!opened) return;
    const back = location.hash;
    this.toast.querySelector("button").addEventListener("click", () => (location.hash = back));
    const next = items.length === 1 ? near.older ?? near.newer : null;
    location.hash = next ?? list.href();
    if (!next) list.heading.focus();
  }

  undo(taken, list) {
    clearTimeout(this.timer);
    this.toast.replaceChildren();
    for (const { item, index } of taken.reverse()) {
      this.going.delete(item.id);
      if (list === this.list && index >= 0) list.rows.insert(item, index);
    }
    list.state();
  }

  commit() {
    clearTimeout(this.timer);
    this.toast.replaceChildren();
    const taken = [...this.going.values()];
    this.going.clear();
    for (const { item, mailbox } of taken) {
      this.list?.gone.add(item.id);
      send("DELETE", `${base(mailbox)}/messages/${item.id}`, undefined, { keepalive: true }).catch((error) => {
        this.list?.gone.delete(item.id);
        if (!this.page.signal.aborted && this.list) {
          say(this.list.trouble, `Not deleted: ${error.message}`);
          this.list.refresh();
        }
      });
    }
  }
}

// The inboxes --------------------------------------------------------------------------------------

// How full an inbox is, once that matters: what is beyond its quota is turned away.
function usage({ message_count: count, bytes: size, max_messages: most, max_bytes: room }) {
  if (count === "" || count === undefined) return "";
  if (room && size >= 0.8 * room) return `${count}, ${bytes(size)} of ${bytes(room)}`;
  return most && count >= 0.8 * most ? `${count} of ${number(most)}` : String(count);
}

function makeRail(mail) {
  const { page } = mail;
  const all = page.may("read");
  const trouble = problem();
  const rows = new Map();
  const body = h("ul", { id: "inboxes", "aria-label": "Live inboxes" });
  const folders = h("ul", { id: "folders", "aria-label": "All" });
  const none = h("p", { class: "none", text: all ? "No inbox yet." : "No inbox yet: create one." });
  const quota = h("p", { class: "small" });
  const search = h("input", { type: "search", name: "q", placeholder: "find an inbox", "aria-label": "Find an inbox", oninput: settled(() => refresh()) });
  let [marked, unread, counting] = [null, new Map(), false];

  const folder = (key, href, text) => h("li", {}, h("a", { href, "data-key": key }, h("span", { text, dir: "auto" }), h("b", { class: "badge", hidden: true })));
  function showFolders() {
    const wanted = [];
    const made = new Map([...folders.children].map((one) => [one.firstChild.dataset.key, one]));
    const want = (key, href, text) => wanted.push(made.get(key) ?? folder(key, href, text));
    if (all) want("all", "#/mail/all", "All mail");
    for (const tag of mail.tags) want(`tag:${tag}`, `#/mail/${part(`tag:${tag}`)}`, `# ${tag}`);
    if (page.may("send")) want("sent", "#/mail/sent", "Sent");
    arrange(folders, wanted);
    folders.hidden = !wanted.length;
    mark(marked);
  }

  const make = (one) => h("li", {}, h("a", { href: `#/mail/${part(one.address)}`, "data-key": one.address },
    h("span", { class: "address", dir: "ltr", text: one.address, title: one.address }),
    h("b", { class: "badge", hidden: true }),
    h("span", { class: "small" }, h("span", { class: "left" }), h("span", { class: "count" }))));
  const fillRow = (row, one) => {
    const count = row.querySelector(".count");
    say(count, usage(one));
    count.dataset.unit = one.message_count === 1 ? "message" : "messages";
    count.title = one.bytes === undefined ? "" : `messages, ${bytes(one.bytes)}${one.max_bytes ? ` of ${bytes(one.max_bytes)}` : ""}`;
    row.dataset.ends = one.expires_at;
    row.dataset.captured = one.owner_type === "capture";
  };
  const show = (items, fresh) => {
    if (fresh) {
      const wanted = new Set(items.map((one) => one.address));
      for (const key of rows.keys()) if (!wanted.has(key)) rows.delete(key);
    }
    for (const one of items) {
      if (!rows.has(one.address)) rows.set(one.address, make(one));
      fillRow(rows.get(one.address), one);
    }
    const order = fresh ? items.map((one) => rows.get(one.address)) : [...rows.values()];
    keepFocus(body, () => arrange(body, order), () => body.querySelector("a"));
    none.hidden = rows.size > 0;
    countDown();
    badges();
    mark(marked);
  };
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), show);

  async function look() {
    const { mailboxes, max_mailboxes: most } = await get("/api/v1/quota", { signal: page.signal });
    say(quota, most === null ? "" : `${number(mailboxes)} of ${number(most)} inboxes that you may have.`);
    if (all) await pages.start(`/api/v1/mailboxes${query({ q: search.value, limit: PAGE })}`);
    else show(kept().map((one) => ({ ...one, message_count: "" })), true);
  }
  const told = (text) => page.signal.aborted || say(pages.problem, text);
  const refresh = () => look().then(() => told(""), (error) => told(error.message));

  function countDown() {
    for (const row of rows.values()) {
      const left = (new Date(row.dataset.ends) - clock.now()) / 1000;
      say(row.querySelector(".left"), left > 0 ? lasting(left) : "over");
    }
  }
  function badges() {
    let sum = 0;
    for (const count of unread.values()) sum += count;
    const set = (badge, count) => {
      badge.hidden = !count;
      say(badge, count >= UNREAD ? `${UNREAD}+` : count || "");
      badge.title = "unread";
    };
    for (const [address, row] of rows) set(row.querySelector(".badge"), unread.get(address) ?? 0);
    const everything = folders.querySelector("[data-key=all] .badge");
    if (everything) set(everything, sum);
  }
  async function count() {
    const found = await get(`/api/v1/messages${query({ q: "is:unread", limit: UNREAD })}`, { signal: page.signal });
    unread = new Map();
    for (const { mailbox, tags } of found) {
      unread.set(mailbox, (unread.get(mailbox) ?? 0) + 1);
      note(tags);
    }
    badges();
  }
  const recount = settled(() => {
    if (!all || counting || page.signal.aborted) return;
    counting = true;
    count().catch(() => {}).finally(() => (counting = false)); // at the next message, then
  });
  function note(tags = []) {
    const before = mail.tags.size;
    for (const tag of tags) if (mail.tags.size < 20) mail.tags.add(tag);
    if (mail.tags.size !== before) showFolders();
  }
  function mark(key) {
    marked = key;
    for (const link of element.querySelectorAll("a[data-key]")) link.ariaCurrent = link.dataset.key === key ? "page" : null;
  }

  const form = h(
    "form",
    {
      id: "create",
      onsubmit: doing(trouble, async () => {
        const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
        if (given.ttl_minutes) given.ttl_minutes = Number(given.ttl_minutes);
        const made = await send("POST", "/api/v1/mailboxes", given);
        if (made.session_token) {
          const opened = await ask(`${base(made.address)}/session`, { method: "POST", headers: { "X-Session-Token": made.session_token } });
          const { page_key } = await opened.json();
          keepInboxes([{ address: made.address, expires_at: made.expires_at, page_key }, ...kept()]);
        }
        form.reset();
        location.hash = `#/mail/${part(made.address)}`;
        refresh();
      }),
    },
    h("label", { text: "Name " }, h("input", { name: "local_part", autocomplete: "off", autocapitalize: "none", spellcheck: false, placeholder: "random" })),
    h("label", { text: "Minutes " }, h("input", { name: "ttl_minutes", type: "number", min: "1", placeholder: "60" })),
    h("button", { text: "Create" }),
  );
  const makes = page.who === null || page.may("read");
  const element = h("section", { class: "rail", "aria-label": "Inboxes" },
    h("div", { class: "scroller" },
      makes ? form : h("p", { class: "small", text: "A key makes and reads inboxes with the scope read, which this one has not." }), trouble,
      folders,
      h("h2", { class: "small", text: "Inboxes" }),
      all ? search : null,
      body, none, pages.element, quota),
    h("p", { class: "foot" }, button("Keys", showKeys, { title: "What each key does (?)" })));
  showFolders();
  recount();
  // Rows that came by "More" are left alone: a list that jumps cannot be read.
  every(EVERY, page.signal, async () => rows.size > PAGE || look(), told);
  const timer = setInterval(countDown, 1000);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  return { element, refresh, mark, recount, note };
}

// One list -----------------------------------------------------------------------------------------

class List {
  constructor(mail, at, q) {
    Object.assign(this, { mail, at, q });
    this.page = mail.page;
    this.left = new AbortController();
    this.signal = this.left.signal;
    this.ends = null;
    this.last = null;
    this.gone = new Set(); // deleted, while a list that was asked for before may still have them
    this.trouble = problem();
    this.stream = h("span", { id: "stream", role: "status", text: at.key === "sent" ? "" : "connecting" });
    this.expires = h("span", { id: "expires" });
    this.field = h("input", { type: "search", name: "messages", value: q, placeholder: "words, from: subject: tag: is:unread …", "aria-label": "Search", oninput: settled(() => this.typed()) });
    this.rows = new MessageList({
      label: "Messages, newest first",
      hrefOf: (item) => this.hrefOf(item),
      more: () => this.nextPage(),
      tell: (text) => say(this.trouble, text),
      picked: () => this.showPicked(),
    });
    this.empty = h("div", { class: "empty", hidden: true });
    this.chosen = h("div", { class: "chosen", role: "group", "aria-label": "Chosen messages", hidden: true });
    const { address, tag } = at;
    this.heading = h("h2", { tabindex: "-1" }, address
      ? [h("output", { id: "address", text: address }), " ", copyButton(address, "the address")]
      : tag ? h("span", { text: `# ${tag}`, dir: "auto" }) : at.key === "sent" ? "Sent" : "All mail");
    mail.middle.append(
      h("div", { class: "top" },
        h("div", { class: "bar" }, h("a", { class: "back", href: "#/mail", text: "‹ Inboxes" }), this.heading),
        h("p", { class: "small" }, this.expires, this.stream,
          address ? button("Delete this inbox", doing(this.trouble, () => this.removeInbox())) : ""),
        at.key === "sent" ? "" : this.field,
        this.trouble, this.chosen),
      this.empty,
      this.rows.element,
    );
    this.timer = setInterval(() => this.tick(), 1000);
    this.signal.addEventListener("abort", () => {
      clearInterval(this.timer);
      this.rows.end();
    });
    if (at.key === "sent") this.refresh();
    else keepUp(this.signal, () => this.follow(), (text) => say(this.stream, text));
  }

  href(tail = "") {
    return `#/mail/${part(this.at.key)}${tail}${query({ q: this.q })}`;
  }

  hrefOf(item) {
    if (this.at.key === "sent") return `#/queue/${item.id}`;
    return this.href(this.at.address ? `/${item.id}` : `/${part(item.mailbox)}/${item.id}`);
  }

  get path() {
    const { address, tag, key } = this.at;
    if (key === "sent") return `/api/v1/outbound${query({ limit: ROWS })}`;
    if (address) return `${base(address)}/messages${query({ q: this.q, limit: ROWS })}`;
    return `/api/v1/messages${query({ q: [tag ? `tag:${quoted(tag)}` : "", this.q].filter(Boolean).join(" "), limit: ROWS })}`;
  }

  async follow() {
    const { signal } = this;
    const { address } = this.at;
    const events = address ? `${base(address)}/events` : "/api/v1/messages/events";
    const response = await ask(events, { signal, headers: this.last ? { "Last-Event-ID": this.last } : {} });
    if (address) {
      const found = await get(base(address), { signal });
      this.ends = new Date(found.expires_at);
      this.tick();
    }
    if (!this.last) await this.refresh(); // the stream begins at the present
    say(this.stream, "listening");
    for await (const event of eventsIn(response)) {
      this.last = event.id ?? this.last;
      if (event.kind !== "new_message") continue;
      await this.loading; // an older list would wipe it out
      this.arrived(event.data);
    }
    say(this.stream, "reconnecting");
  }

  arrived(item) {
    this.mail.rail.recount();
    this.mail.rail.note(item.tags);
    if (this.at.tag && !item.tags?.includes(this.at.tag)) return;
    if (this.q) this.again();
    else if (!this.gone.has(item.id) && !this.mail.going.has(item.id)) {
      this.rows.arrived(item);
      this.state();
      this.mail.reader.around();
    }
  }

  again = settled(() => this.signal.aborted || this.refresh());

  tick() {
    if (new Date().getSeconds() % 20 === 0) this.rows.tick();
    if (this.ends === null) return;
    const left = (this.ends - clock.now()) / 1000;
    say(this.expires, left > 0 ? `${lasting(left)} left` : "over");
    this.expires.title = `until ${when(this.ends)}`;
  }

  typed() {
    this.q = this.field.value.trim();
    const { values, parts } = addressed();
    if (this.q) values.set("q", this.q);
    else values.delete("q");
    const path = parts.length ? parts : ["mail", part(this.at.key)];
    history.replaceState(null, "", `#/${path.join("/")}${query(Object.fromEntries(values))}`);
    this.refresh();
  }

  search(q) {
    this.q = q;
    this.field.value = q;
    this.refresh();
  }

  refresh() {
    this.loading = this.first();
    return this.loading;
  }

  async load(path) {
    let { items, next } = await pageOf(path, { signal: this.signal });
    // A page may be empty and yet not the last: the relay looks at so many rows a call.
    for (let tries = 0; !items.length && next && tries < 10; tries += 1) ({ items, next } = await pageOf(next, { signal: this.signal }));
    if (this.at.key === "sent") items = items.map((one) => ({ ...one, from_address: one.recipient ?? "somebody", received_at: one.created_at, snippet: one.status, tags: one.tag ? [one.tag] : [] }));
    return { items: items.filter((one) => !this.gone.has(one.id) && !this.mail.going.has(one.id)), next };
  }

  async first() {
    const { path } = this;
    try {
      const { items, next } = await this.load(path);
      if (this.path !== path) return; // asked anew meanwhile
      say(this.trouble, "");
      this.next = next;
      for (const item of items) this.mail.rail.note(item.tags);
      this.rows.start(items, next !== null);
      this.state();
      this.mail.reader.around();
    } catch (error) {
      if (!this.signal.aborted) say(this.trouble, error.message);
    }
  }

  async nextPage() {
    const { path, next } = this;
    const got = await this.load(next);
    if (this.path !== path || this.next !== next) return null;
    this.next = got.next;
    return { items: got.items, more: got.next !== null };
  }

  // What stands in place of rows.
  state() {
    const empty = this.rows.items.length === 0;
    if (this.empty.hidden !== empty && this.q === this.emptyFor) return;
    this.empty.hidden = !empty;
    this.rows.element.hidden = empty;
    this.emptyFor = this.q;
    if (!empty) return;
    if (this.q) this.empty.replaceChildren(h("p", { class: "none", text: "No message matches." }));
    else if (this.at.key === "sent") this.empty.replaceChildren(h("p", { class: "none", text: "Nothing was sent yet." }));
    else if (this.at.tag) this.empty.replaceChildren(h("p", { class: "none", text: "No message has this tag." }));
    else this.empty.replaceChildren(firstMail(this.at.address ?? null, this.page, this.signal));
  }

  chosenItems() {
    return this.rows.items.filter((item) => this.rows.picked.has(item.id));
  }

  showPicked() {
    const count = this.rows.picked.size;
    this.chosen.hidden = count === 0;
    if (!count) return;
    const mark = (isRead) => doing(this.trouble, () => this.mail.mark(this.chosenItems(), isRead).then(() => this.rows.pickNone()));
    const removeThem = () => {
      const items = this.chosenItems();
      this.rows.pickNone();
      this.mail.remove(items);
    };
    if (!this.chosen.firstChild) {
      this.chosen.append(h("span"), button("All", () => this.rows.items.forEach((item) => this.rows.pick(item.id, true)), { title: "Every row of this list that was loaded" }),
        button("Read", mark(true)), button("Unread", mark(false)), button("Delete", removeThem, { ariaLabel: "Delete the chosen" }), button("None", () => this.rows.pickNone()));
    }
    say(this.chosen.firstChild, `${count} chosen`);
  }

  async removeInbox() {
    const { address } = this.at;
    if (!confirm(`Delete ${address}? Its mail goes with it.`)) return;
    await send("DELETE", base(address));
    forget(address);
    this.mail.rail.refresh();
    location.hash = "#/mail";
  }
}

// The parts of the address as they stand in it.
function addressed() {
  const [path, values] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean), values: new URLSearchParams(values ?? "") };
}
