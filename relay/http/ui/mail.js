// Mail: inboxes, the list of one, and the message that is read, side by side.
//
// Each state has an address, so that reload, back and a shared link lead to it:
//   #/mail                        everything (a phone: the inboxes)
//   #/mail/all[/MAILBOX/ID]       all mail            #/mail/tag:NAME[/MAILBOX/ID]  what has a tag
//   #/mail/ADDRESS[/ID]           one inbox           #/mail/sent[/ID]              what was sent
// with ?q= for a search.  An anonymous inbox is this browser's: its token became a cookie of that
// inbox alone and a key, which the page remembers with the address.

import { addressed, ask, clock, eventsIn, every, get, keepUp, page as pageOf, part, query, Refused, send } from "./calls.js";
import { came, counted, look as unreadOnes, LOOK, MOST as UNREAD, NEWEST, notifies, notify } from "./badge.js";
import { asking, field, submitting, tell } from "./dialogs.js";
import { arrange, button, bytes, copyButton, doing, firstOf, h, input, keepFocus, lasting, number, Pages, problem, say, settled, titled, when, whose } from "./dom.js";
import { firstMail, howToSignIn, inTerminal } from "./hello.js";
import { keysOf, showKeys } from "./hotkeys.js";
import { MessageList } from "./list.js";
import { divide } from "./panes.js";
import { base, Reader } from "./reader.js";
import { inboxes, keepInboxes, places, recall, retain } from "./secrets.js";
import { named as said, t } from "./strings.js";

export const title = t("Mail");
export const scope = null;

const EVERY = 5000; // ms between two looks at the list of inboxes
const PAGE = 50; // inboxes
const ROWS = 200; // messages of a page
const MOST = 1000; // messages that one call deletes; their ids are less than what may outlive a page
const OWED = "relay.deletions"; // what this tab has yet to delete, if that is more
const UNDO = 6000; // ms in which a deletion can be taken back
const FOLDERS = 20; // tags that are shown unasked
const TOLD = 5; // messages that could not be released
const TERMS = ["from:", "to:", "subject:", "tag:", "is:unread", "is:read", "has:attachment", "before:", "after:", "larger:", "smaller:"];

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
  const owed = recall(OWED, "sessionStorage");
  if (owed) mail.bury(owed);
  return (at) => mail.move(at);
}

class Mail {
  constructor(place, page) {
    this.page = page;
    this.list = null;
    this.going = new Map(); // what is deleted, but for an undo
    this.uncounted = new Map(); // the same, and until the relay has deleted it: {mailbox, is_read}
    this.reader = new Reader(this);
    this.tags = new Set();
    this.rail = makeRail(this);
    this.middle = h("section.middle", { ariaLabel: t("The inbox") });
    this.toast = h("div", { id: "toast", role: "status" });
    this.element = h("div.mail");
    divide(this.element, [this.rail.element, this.middle, this.reader.place]);
    place.append(this.element, this.toast);
    keysOf(this, page.signal);
    page.acts(() => this.acts());
    // What is done in one tab is seen in the others.
    this.tabs = new BroadcastChannel("relay.mail");
    this.tabs.onmessage = ({ data }) => this.heard(data);
    page.signal.addEventListener("abort", () => this.left());
    addEventListener("pagehide", () => {
      this.list?.keepPlace();
      this.reader.keepPlace();
      this.commit();
    }, { signal: page.signal });
  }

  left() {
    this.list?.left.abort();
    this.commit();
    this.tabs.close();
  }

  move({ parts: [name, ...rest], values }) {
    const all = this.page.may("read");
    const at = (name && named(name)) ?? (all ? { key: "all" } : null);
    const q = values.get("q") ?? "";
    const key = at?.key;
    if (!this.started || this.list?.at.key !== key || this.list?.signal.aborted) {
      this.started = true;
      this.list?.left.abort();
      this.middle.replaceChildren();
      this.list = at ? new List(this, at, q) : null;
      this.reader.close();
      if (!at) this.middle.append(howToSignIn());
    } else if (this.list && q !== this.list.q) this.list.search(q);
    const [mailbox, id] = at?.address || key === "sent" ? [at.address, rest[0]] : rest;
    this.element.dataset.pane = id ? "reader" : !this.list ? "home" : name ? "list" : "rail";
    if (this.list) this.list.rows.mark(id ?? null);
    if (id) {
      this.reader.read(mailbox, id);
      this.reader.around();
    } else this.reader.close();
    this.rail.mark(key);
    if (at?.address && !this.rail.has(at.address)) this.rail.refresh(); // made just now, perhaps
  }

  heard({ patch, gone, kept }) {
    if (kept) {
      for (const id of kept) this.list?.gone.delete(id);
      this.list?.refresh();
    }
    if (patch) this.list?.rows.patch(patch);
    if (gone?.length) {
      for (const id of gone) this.list?.gone.add(id);
      this.list?.rows.remove(gone);
      this.list?.state();
      if (gone.includes(this.reading)) this.reader.gone();
      this.reader.around();
    }
    this.rail.recount();
  }

  // What the relay tells of messages that were changed, by whomever: here, in another tab, elsewhere.
  edited({ changed, deleted, reread }) {
    const { list, going, reader } = this;
    for (const one of changed) {
      Object.assign(list.fresh.find(({ id }) => id === one.id) ?? {}, one);
      this.rail.note(one.tags);
      if (!list.rows.patch(one) && list.at.tag && list.tagged(one)) list.again();
      reader.tags(one);
    }
    const waiting = going.size;
    for (const id of deleted) {
      going.delete(id);
      this.uncounted.delete(id);
    }
    this.heard({ gone: deleted });
    if (waiting && !going.size) this.say(t("Deleted.")); // there is nothing to be taken back
    if (reread) list.reread();
  }

  patch(changed) {
    this.list?.rows.patch(changed);
    this.tabs.postMessage({ patch: changed });
  }

  // What the palette offers beside what the page does.
  acts() {
    const { list, reader } = this;
    const message = reader.message;
    const read = (title, act) => ({ title, act: () => act().catch((error) => say(reader.trouble, error.message)) });
    return [
      { title: t("New inbox"), act: () => this.rail.element.querySelector("#create button")?.click() },
      { title: t("Search this list"), key: "/", act: () => list?.field.focus() },
      { title: t("Keys"), key: "?", act: showKeys },
      ...(message ? [
        { ...read(t("Mark unread"), () => this.unread(message)), key: "u" },
        { title: t("Delete this message"), key: "#", act: () => this.remove([message]) },
        ...(this.page.may("send") ? [
          { title: t("Reply"), key: "r", act: () => reader.press("reply") },
          { title: t("Forward this message"), key: "f", act: () => reader.press("forward") },
        ] : []),
      ] : []),
    ];
  }

  // Send messages on, as they are, to who is named: those chosen, or all that the list may show.
  async release(items) {
    const { list } = this;
    const { signal } = this.page;
    const { release } = await get("info", { signal });
    if (!release) return tell(t("Forward this message"), t("Nothing can be forwarded here: RELAY_OUTBOUND__UPSTREAM has to name a server that takes mail, and RELAY_OUTBOUND__RELEASE_TO who may get it."));
    const allowed = this.page.may("admin") && (await get("settings", { signal })).find(({ name }) => name === "outbound.release_to").value.join(", ");
    const left = (items === list ? await this.matching(list) : items).map((item) => ({ path: `${base(item.mailbox ?? list.at.address)}/messages/${item.id}/release`, about: item.subject || t("(no subject)") }));
    asking({
      title: left.length === 1 ? t("Forward this message") : t("Forward {0} messages", number(left.length)),
      says: [t("It goes out as it came, byte for byte, to addresses that RELAY_OUTBOUND__RELEASE_TO allows"), allowed].filter(Boolean).join(": "),
      fields: [field("to", t("To"), { placeholder: t("ann@example.com"), autofocus: true })],
      does: t("Forward"),
      draft: left.map(({ path }) => path).join(),
      act: async ({ to }, going) => {
        const wanted = to.split(/[\s,;]+/).filter(Boolean);
        const all = left.length;
        const refused = [];
        let [queued, stopped] = [0, null];
        while (left.length && !going.over() && !signal.aborted) {
          if (all > 1) going.tell(t("{0} of {1}", number(all - left.length), number(all)));
          try {
            await send("POST", left[0].path, { to: wanted });
            queued += 1;
          } catch (error) {
            // An outage, or recipients whom no message may go to: the next press goes on from here.
            if (!(error instanceof Refused) || (!queued && (error.status === 422 || error.problem === "release-not-allowed"))) {
              stopped = error;
              break;
            }
            refused.push({ ...left[0], why: error.message });
          }
          left.shift();
        }
        for (const one of refused) left.push(one);
        if (signal.aborted) return;
        if (stopped && !queued) throw stopped;
        const why = refused.slice(0, TOLD).map((one) => `${one.about}: ${one.why}`);
        const said = [all === 1 && queued ? t("Queued.") : t("Queued: {0} of {1}.", number(queued), number(all)), ...why, refused[TOLD] ? "…" : "", stopped?.message].join(" ");
        if (left.length && !going.over()) throw new Error(said);
        this.say(said);
      },
    });
  }

  // All that the list may show, loaded or not.
  async matching(list) {
    const found = [];
    for (let path = `${list.everything}&limit=${ROWS}`; path; ) {
      const { items, next } = await this.page.list(path);
      found.push(...items);
      path = next;
      this.say(t("{0} found", number(found.length)));
    }
    return found;
  }

  tag(items, changed) {
    asking({
      title: items === this.list ? t("Tag all that match") : items.length === 1 ? t("Tag this message") : t("Tag {0} messages", items.length),
      fields: [field("tag", t("Tag"), { maxLength: 100, list: "known-tags" }), h("datalist", { id: "known-tags" }, [...this.tags].map((value) => h("option", { value })))],
      does: t("Tag"),
      act: async ({ tag }) => {
        if (items === this.list) await this.bulk(items, { add_tags: [tag] });
        else await this.each(items, async (item) => {
          const now = await this.change(item, { add_tags: [tag] });
          item.tags = now.tags;
          this.patch({ id: item.id, tags: now.tags });
        });
        this.rail.note([tag]);
        changed();
      },
    });
  }

  async untag(item, tag) {
    item.tags = (await this.change(item, { remove_tags: [tag] })).tags;
    this.patch({ id: item.id, tags: item.tags });
    this.rail.retag();
  }

  change(item, what) {
    return send("PATCH", `${base(this.mailboxOf(item))}/messages/${item.id}`, what);
  }

  tagsOf(id) {
    return this.list?.rows.known.get(id)?.tags;
  }

  // A few at once: a thousand one after the other would be long.
  async each(items, act) {
    const left = [...items];
    await Promise.all(Array.from({ length: 6 }, async () => {
      for (let item = left.pop(); item; item = left.pop()) await act(item);
    }));
  }

  say(text) {
    this.commit();
    this.toast.replaceChildren(h("span", { text }));
    this.timer = setTimeout(() => this.toast.replaceChildren(), UNDO);
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
    this.patch({ id: message.id, is_read: true });
    this.rail.recount();
  }

  mailboxOf(item) {
    return item.mailbox ?? this.list.at.address;
  }

  async mark(items, isRead) {
    if (items === this.list) {
      await this.bulk(items, { is_read: isRead });
      return;
    }
    await this.each(items, async (item) => {
      await this.change(item, { is_read: isRead });
      this.patch({ id: item.id, is_read: isRead });
    });
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
    for (const item of items) {
      this.going.set(item.id, this.mailboxOf(item));
      this.uncounted.set(item.id, { mailbox: this.mailboxOf(item), is_read: item.is_read });
    }
    this.rail.tell();
    let taken;
    keepFocus(this.element, () => (taken = list.rows.remove([...this.going.keys()])), () => list.heading);
    list.state();
    const back = location.hash;
    const told = items.length === 1 ? t("Deleted.") : t("{0} messages deleted.", number(items.length));
    this.offer(told, () => {
      this.countAgain([...this.going.keys()], true);
      this.going.clear();
      if (list === this.list) list.rows.insert(taken.filter(({ item }) => !list.gone.has(item.id)));
      list.state();
      if (opened) location.hash = back;
    });
    if (!opened) return;
    const next = items.length === 1 ? near.older ?? near.newer : null;
    location.hash = next ?? list.href();
    if (!next) list.heading.focus();
  }

  // `stay`: they were not deleted.
  countAgain(ids, stay) {
    for (const id of ids) this.uncounted.delete(id);
    if (stay) this.rail.tell();
    this.rail.recount();
  }

  // Whether all of an inbox, or of all of them, is deleted, but for an undo.
  emptied(address) {
    const { at, q } = this.sweeping ?? {};
    return Boolean(at) && !q && !at.tag && (!at.address || at.address === address);
  }

  // All that the list may show goes, seen or not, in one call.
  sweep(list) {
    this.commit();
    this.swept = { list, path: list.everything };
    this.sweeping = { at: list.at, q: list.q };
    this.rail.tell();
    list.rows.pickNone();
    list.swept = true;
    list.rows.start([], false);
    list.state();
    if (this.reading) location.hash = list.href();
    this.offer(t("All that match are deleted."), () => {
      this.swept = this.sweeping = null;
      this.rail.tell();
      list.swept = false;
      list.refresh();
    });
  }

  offer(text, undo) {
    this.timer = setTimeout(() => this.commit(), UNDO);
    this.undoing = () => this.toast.querySelector("button")?.click();
    this.toast.replaceChildren(h("span", { text }), button(t("Undo"), () => {
      clearTimeout(this.timer);
      this.toast.replaceChildren();
      undo();
    }, { title: t("Undo (z)") }));
  }

  // Change all that a list may show, in one call; other tabs look again.
  async bulk(list, change) {
    await send("PATCH", list.everything, change);
    this.again();
  }

  again() {
    this.tabs.postMessage({ kept: [] });
    this.heard({ kept: [] });
  }

  commit() {
    clearTimeout(this.timer);
    this.toast.replaceChildren();
    if (this.swept) {
      const { list, path } = this.swept;
      this.swept = null;
      send("DELETE", path, undefined, { keepalive: true })
        .catch((error) => this.page.signal.aborted || say(list.trouble, t("Not deleted: {0}", error.message)))
        .finally(() => {
          list.swept = false;
          this.sweeping = null;
          if (!this.page.signal.aborted) this.again();
        });
    }
    if (this.going.size) this.bury([...this.going]);
    this.going.clear();
  }

  // Have the relay delete [[id, mailbox], …]: in one call, since a browser drops most of many that it
  // is to make as the page is left; of more than that, one after the other.  Of these a page that is
  // left makes the first alone: the next visit of this tab makes the others, and that one again, which
  // does no harm.
  async bury(taken) {
    const keep = (left) => retain(OWED, left, "sessionStorage");
    const many = taken.length > MOST;
    const ids = taken.map(([id]) => id);
    const all = [...ids];
    const mailboxes = new Set(taken.map(([, mailbox]) => mailbox));
    const path = `${mailboxes.size === 1 ? base(taken[0][1]) : "/api/v1"}/messages/delete`;
    for (const id of ids) this.list?.gone.add(id);
    this.tabs.postMessage({ gone: ids });
    try {
      while (ids.length) {
        if (many) keep(taken);
        await send("POST", path, { ids: ids.slice(0, MOST) }, { keepalive: true });
        for (const list of [ids, taken]) list.splice(0, MOST);
      }
      if (many) keep(null);
      if (!this.page.signal.aborted) this.countAgain(all);
    } catch (error) {
      if (many) keep(null); // as it is said to be
      for (const id of ids) this.list?.gone.delete(id);
      if (this.page.signal.aborted || !this.list) return;
      this.countAgain(all, true);
      say(this.list.trouble, t("Not deleted: {0}", error.message));
      this.tabs.postMessage({ kept: ids });
      this.list.refresh();
    }
  }
}

// The inboxes --------------------------------------------------------------------------------------

// How full an inbox is, once that matters: what is beyond its quota is turned away.
function usage({ message_count: count, bytes: size, max_messages: most, max_bytes: room }) {
  if (count === "" || count === undefined) return "";
  if (room && size >= 0.8 * room) return `${count}, ${t("{0} of {1}", bytes(size), bytes(room))}`;
  return most && count >= 0.8 * most ? t("{0} of {1}", count, number(most)) : String(count);
}

function makeRail(mail) {
  const { page } = mail;
  const all = page.may("read");
  const trouble = problem();
  const rows = new Map();
  const body = h("ul", { id: "inboxes", ariaLabel: t("Live inboxes") });
  const folders = h("ul", { id: "folders", ariaLabel: t("All") });
  // The narrowest screens show the inboxes alone, and the lines to copy stand in the list.
  const first = h("a.first", { href: "#/mail/all", text: t("Send the first mail") });
  const none = h("p.none", h("span"), " ", first);
  const quota = h("p.small");
  const search = h("input", { type: "search", name: "q", placeholder: t("find an inbox"), ariaLabel: t("Find an inbox"), oninput: settled(() => refresh()) });
  let [marked, unread, newest, counting, again] = [null, 0, [], false, false]; // `newest`: of what is unread

  const folder = (key, href, text) => h("li", h("a", { href, "data-key": key }, h("span", { text, dir: "auto" }), h("b.badge", { hidden: true })));
  const others = h("ul");
  const further = h("li", h("details", h("summary", t("More tags")), others));
  function showFolders() {
    const made = new Map([...folders.querySelectorAll("a")].map((link) => [link.dataset.key, link.parentElement]));
    const want = (key, href, text) => made.get(key) ?? folder(key, href, text);
    const tags = all ? [...mail.tags].sort((a, b) => a.localeCompare(b)).map((tag) => want(`tag:${tag}`, `#/mail/${part(`tag:${tag}`)}`, `# ${tag}`)) : [];
    const wanted = all ? [want("all", "#/mail/all", t("All mail")), ...tags.slice(0, FOLDERS)] : [];
    if (tags.length > FOLDERS) wanted.push(further);
    if (page.may("send")) wanted.push(want("sent", "#/mail/sent", t("Sent")));
    arrange(others, tags.slice(FOLDERS));
    arrange(folders, wanted);
    folders.hidden = !wanted.length;
    mark(marked);
  }

  const make = (one) => h("li", h("a", { href: `#/mail/${part(one.address)}`, "data-key": one.address },
    h("span.address", { dir: "ltr", text: one.address, title: one.address }),
    h("b.badge", { hidden: true }),
    h("span.small", h("span.left"), h("span.count"))));
  const fillRow = (row, given) => {
    row.given = given;
    const one = remaining(given);
    const count = row.querySelector(".count");
    say(count, usage(one));
    count.dataset.unit = one.message_count === 1 ? t("message") : t("messages");
    count.title = one.bytes === undefined ? "" : t("messages, {0}", one.max_bytes ? t("{0} of {1}", bytes(one.bytes), bytes(one.max_bytes)) : bytes(one.bytes));
    row.dataset.ends = one.expires_at;
    row.dataset.unread = one.unread_count ?? 0;
    row.querySelector(".left").dataset.captured = one.owner_type === "capture" ? t("captured · ") : "";
  };
  // What an inbox has but for what is deleted here, and may still be taken back.
  function remaining(one) {
    if (one.message_count === "") return one;
    const less = [...mail.uncounted.values()].filter(({ mailbox }) => mailbox === one.address);
    const but = (count, some) => (mail.emptied(one.address) ? 0 : Math.max(0, (count ?? 0) - some.length));
    return { ...one, message_count: but(one.message_count, less), unread_count: but(one.unread_count, less.filter((item) => !item.is_read)) };
  }
  const tell = () => {
    for (const row of rows.values()) fillRow(row, row.given);
    badges();
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
    first.hidden = search.value !== "";
    say(none.firstChild, first.hidden ? t("No inbox matches.") : t("No inbox yet."));
    countDown();
    badges();
    mark(marked);
    if (mail.list?.signal.aborted && rows.has(marked)) dispatchEvent(new Event("hashchange")); // captured anew
  };
  const pages = new Pages(page.list, show);

  async function look() {
    const { mailboxes, max_mailboxes: most, default_ttl_minutes: minutes, unread: count } = await page.get("quota");
    unread = count;
    form.elements.ttl_minutes.placeholder = minutes;
    lives();
    const counts = [number(mailboxes), number(most)];
    say(quota, most === null ? "" : page.who ? t("{0} of {1} inboxes that you may have.", ...counts) : t("{0} of {1} inboxes that your network address may have.", ...counts));
    if (all) await pages.start(`mailboxes${query({ q: search.value, limit: PAGE })}`);
    else show(kept().map((one) => ({ ...one, message_count: "" })), true);
  }
  const told = (text) => page.signal.aborted || say(pages.problem, text);
  const refresh = () => look().then(() => told(""), (error) => told(error.message));

  function countDown() {
    for (const row of rows.values()) {
      const left = (new Date(row.dataset.ends) - clock.now()) / 1000;
      say(row.querySelector(".left"), left > 0 ? lasting(left) : t("over"));
    }
  }
  function badges() {
    const set = (badge, count) => {
      badge.hidden = !count;
      say(badge, counted(count));
      badge.title = t("unread");
    };
    for (const row of rows.values()) set(row.querySelector(".badge"), Number(row.dataset.unread));
    const everything = folders.querySelector("[data-key=all] .badge");
    const left = [...mail.uncounted.values()].filter((item) => !item.is_read).length;
    if (everything) set(everything, mail.emptied(null) ? 0 : unread < UNREAD ? Math.max(0, unread - left) : unread);
    // Of a tag, nothing where there are more than were looked at: how many is not known.
    const looked = unread > NEWEST ? [] : newest;
    for (const link of folders.querySelectorAll("[data-key^='tag:']")) {
      const tag = link.dataset.key.slice(4).toLowerCase();
      set(link.querySelector(".badge"), looked.filter(({ id, tags }) => !mail.uncounted.has(id) && tags?.some((one) => one.toLowerCase() === tag)).length);
    }
  }
  // What is seen to have changed, before the next look at the list: of as many rows as a page has.
  async function count() {
    const { signal } = page;
    const [{ found, count: sum }, listed] = await Promise.all([
      unreadOnes({ signal }),
      get(`mailboxes${query({ q: search.value, limit: Math.min(Math.max(rows.size, PAGE), ROWS) })}`, { signal }),
    ]);
    for (const one of listed) if (rows.has(one.address)) fillRow(rows.get(one.address), one);
    for (const { tags } of found) note(tags);
    [unread, newest] = [sum, found];
    badges();
  }
  const recount = settled(() => {
    again = counting;
    if (!all || counting || page.signal.aborted) return;
    counting = true;
    count().catch(() => {}).finally(() => { // at the next message, then
      counting = false;
      if (again) recount();
    });
  });
  function note(tags = []) {
    const before = mail.tags.size;
    const lower = new Set([...mail.tags].map((tag) => tag.toLowerCase()));
    for (const tag of tags) if (!lower.has(tag.toLowerCase())) mail.tags.add(tag);
    if (mail.tags.size !== before) showFolders();
  }
  // All that there are, loaded or not.
  async function retag() {
    if (!all) return;
    const found = await page.get("tags").catch(() => null); // what comes tells, too
    if (!found) return;
    mail.tags = new Set(found.map((one) => one.tag));
    showFolders();
  }
  function mark(key) {
    marked = key;
    for (const link of element.querySelectorAll("a[data-key]")) link.ariaCurrent = link.dataset.key === key ? "page" : null;
  }

  const lasts = h("p.small", { id: "lives" });
  const form = h(
    "form",
    {
      id: "create",
      onsubmit: submitting(trouble, async () => {
        const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ""));
        if (given.ttl_minutes) given.ttl_minutes = Number(given.ttl_minutes);
        const made = await send("POST", "mailboxes", given);
        if (made.session_token) {
          const opened = await ask(`${base(made.address)}/session`, { method: "POST", headers: { "X-Session-Token": made.session_token } });
          const { page_key } = await opened.json();
          keepInboxes([{ address: made.address, expires_at: made.expires_at, page_key }, ...kept()]);
        }
        form.reset();
        lives();
        location.hash = `#/mail/${part(made.address)}`;
        refresh();
      }),
    },
    h("label", t("New inbox "), input("local_part", { autocomplete: "off", spellcheck: false, placeholder: t("random name") })),
    h("label", t("Minutes "), h("input", { name: "ttl_minutes", type: "number", min: "1", oninput: () => lives(), "aria-describedby": "lives" })),
    lasts, h("button", t("Create")),
  );
  const lives = () => {
    const { value, placeholder } = form.elements.ttl_minutes;
    say(lasts, Number(value || placeholder) ? t("It lives for {0}.", lasting(60 * (value || placeholder))) : "");
  };
  const unheard = h("span.small", { role: "status" });
  const words = button(t("Notify me"), async () => {
    const wanted = !notifies();
    const told = await notify(wanted);
    words.ariaPressed = String(told);
    say(unheard, !wanted || told ? "" : isSecureContext
      ? t("This browser refuses notifications of this page: allow them in its settings of the site.")
      : t("Browsers notify only of pages that come over HTTPS, or from localhost."));
  }, { title: t("Say so when mail comes while this page is not looked at"), ariaPressed: String(notifies()) });
  const makes = page.who === null || page.may("read");
  const element = h("section.rail", { ariaLabel: t("Inboxes") },
    h("div.scroller",
      makes ? form : h("p.small", t("A key makes and reads inboxes with the scope read, which this one has not.")), trouble,
      folders,
      h("h2.small", t("Inboxes")),
      all ? search : null,
      body, all ? none : null, pages.element, quota),
    h("p.foot", button(t("Keys"), showKeys, { title: t("What each key does (?)") }), " ", words, " ", unheard));
  showFolders();
  recount();
  retag();
  // Rows that came by "More" are left alone: a list that jumps cannot be read.
  every(EVERY, page.signal, async () => rows.size > PAGE || look(), told);
  const timers = [setInterval(countDown, 1000), setInterval(recount, LOOK)];
  page.signal.addEventListener("abort", () => timers.forEach(clearInterval));
  const has = (address) => rows.has(address);
  return { element, refresh, mark, recount, tell, note, retag, has };
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
    this.fresh = []; // that came, and are not shown yet
    this.due = null;
    this.rest = 0; // ms before the next are
    this.gone = new Set(); // deleted, while a list that was asked for before may still have them
    this.trouble = problem();
    this.stream = h("span", { id: "stream", role: "status", text: at.key === "sent" ? "" : t("connecting") });
    this.expires = h("span", { id: "expires" });
    this.field = h("input", { type: "search", name: "messages", value: q, placeholder: at.key === "sent" ? t("an address or a domain") : t("words, from: subject: tag: is:unread …"), ariaLabel: t("Search"), list: "search-terms", autocomplete: "off", oninput: () => {
      this.suggest();
      this.soon();
    }, onkeydown: (pressed) => this.leave(pressed) });
    this.terms = h("datalist", { id: "search-terms" });
    this.soon = settled(() => this.typed());
    this.rows = new MessageList({
      label: t("Messages, newest first"),
      hrefOf: (item) => this.hrefOf(item),
      toOf: (item) => (at.address || at.key === "sent" ? null : item.mailbox),
      more: () => this.nextPage(),
      tell: (text) => say(this.trouble, text),
      picked: at.key === "sent" ? undefined : () => this.showPicked(),
      told: (count) => {
        this.above.hidden = !count;
        say(this.above, t("↑ {0} new", number(count)));
      },
    });
    this.above = button("", () => {
      this.rows.element.scrollTop = 0;
      this.heading.focus({ preventScroll: true });
    }, { id: "above", hidden: true });
    this.empty = h("div.empty", { hidden: true });
    this.chosen = h("div.chosen", { role: "group", ariaLabel: t("Chosen messages"), hidden: true });
    const { address, tag } = at;
    this.hits = h("span", { role: "status" });
    this.heading = h("h2", { tabindex: "-1" }, address
      ? [h("output", { id: "address", text: address }), " ", copyButton(address, t("the address"))]
      : tag ? h("span", { text: `# ${tag}`, dir: "auto" }) : at.key === "sent" ? t("Sent") : t("All mail"));
    const said = h("p.small", this.expires, this.stream, this.hits, this.above, address ? button(t("Delete this inbox"), () => this.removeInbox()) : "");
    mail.middle.append(
      h("div.top",
        h("div.bar", h("a.back", { href: "#/mail", text: t("‹ Inboxes") }), this.heading, address ? "" : said),
        address ? said : "", this.field, this.terms,
        this.trouble),
      this.empty,
      this.rows.element,
      this.chosen,
    );
    this.timer = setInterval(() => this.tick(), 1000);
    this.signal.addEventListener("abort", () => {
      clearInterval(this.timer);
      clearTimeout(this.due);
      this.keepPlace();
      this.rows.end();
    });
    if (at.key === "sent") every(EVERY, this.signal, () => this.rows.items.length <= ROWS && this.refresh(), () => {});
    else keepUp(this.signal, () => this.follow(), (text, { problem } = {}) => (problem === "mailbox-not-found" ? this.over(text) : say(this.stream, text)));
  }

  // The inbox was deleted, or has expired, elsewhere; or there is none for who is here.
  over(text) {
    const { mail, at } = this;
    mail.commit();
    this.left.abort();
    this.rows.start([], false);
    mail.middle.replaceChildren(h("div.top", mail.middle.querySelector(".bar")), h("p.none", { role: "alert", text: this.ends ? t("This inbox is over, and its mail is gone.") : text }));
    mail.reader.gone();
    if (this.page.who === null) forget(at.address);
    mail.rail.refresh();
  }

  href(tail = "") {
    return `#/mail/${part(this.at.key)}${tail}${query({ q: this.q })}`;
  }

  hrefOf(item) {
    return this.href(this.at.address || this.at.key === "sent" ? `/${item.id}` : `/${part(item.mailbox)}/${item.id}`);
  }

  get path() {
    const { address, key } = this.at;
    if (key === "sent") return `outbound${query({ [this.q.includes("@") ? "recipient" : "domain"]: this.q, limit: ROWS })}`;
    if (address) return `${base(address)}/messages${query({ q: this.q, limit: ROWS })}`;
    return `messages${query({ q: this.asked, limit: ROWS })}`;
  }

  async follow() {
    const { signal } = this;
    const { address } = this.at;
    const events = address ? `${base(address)}/events` : "messages/events";
    const response = await ask(events, { signal, headers: this.last ? { "Last-Event-ID": this.last } : {} });
    if (address) {
      const found = await get(base(address), { signal });
      this.ends = new Date(found.expires_at);
      this.tick();
    }
    if (this.last) this.reread(); // what was changed meanwhile nobody says
    else await this.refresh(); // the stream begins at the present
    say(this.stream, t("live"));
    for await (const event of eventsIn(response)) {
      this.last = event.id ?? this.last;
      await this.loading; // an older list would wipe it out
      if (event.kind === "new_message") this.arrived(event.data);
      if (event.kind === "messages_changed") this.mail.edited(event.data);
    }
    say(this.stream, t("reconnecting"));
  }

  // Whether a message has the tag that all here have, in whatever case: tags are compared without.
  tagged({ tags }) {
    const wanted = this.at.tag?.toLowerCase();
    return !wanted || Boolean(tags?.some((tag) => tag.toLowerCase() === wanted));
  }

  arrived(item) {
    if (!this.rows.known.has(item.id)) came(item, this.hrefOf(item));
    this.mail.rail.recount();
    this.mail.rail.note(item.tags);
    if (!this.tagged(item)) return;
    if (this.q) this.again();
    else {
      this.fresh.push(item);
      this.due ??= setTimeout(() => this.showFresh(), this.rest);
    }
  }

  // However fast mail comes, the page rests most of the time.
  showFresh() {
    const began = performance.now();
    this.due = null;
    this.rows.arrived(this.fresh.splice(0).filter(({ id }) => !this.gone.has(id) && !this.mail.going.has(id)));
    this.state();
    this.mail.reader.around();
    this.rest = 4 * (performance.now() - began);
  }

  // All anew, and the list where it was scrolled to: nobody says which messages were changed.
  reread = settled(async () => {
    if (this.signal.aborted) return;
    const { place } = this.rows;
    this.mail.rail.retag();
    this.mail.reader.look();
    await this.refresh();
    if (place) await this.rows.goTo(place);
  });

  again = settled(() => this.signal.aborted || this.refresh());

  tick() {
    if (new Date().getSeconds() % 20 === 0) this.rows.tick();
    if (this.ends === null) return;
    const left = (this.ends - clock.now()) / 1000;
    say(this.expires, left > 0 ? t("{0} left", lasting(left)) : t("over"));
    this.expires.title = t("until {0}", when(this.ends));
  }

  // What is typed yet is no search: an operator without its value, or with half a word of it.
  typed(whole = false) {
    const q = this.field.value.trim();
    const last = /\S*$/.exec(q)[0].replace(/^-/, "").toLowerCase();
    if (!whole && /^[a-z]+:/.test(last) && TERMS.some((term) => term.startsWith(last) && term !== last.replace(/:$/, ""))) return;
    if (q === this.q) return;
    this.q = q;
    const { values, parts } = addressed();
    if (this.q) values.set("q", this.q);
    else values.delete("q");
    const path = parts.length ? parts : ["mail", part(this.at.key)];
    history.replaceState(null, "", `#/${path.join("/")}${query(Object.fromEntries(values))}`);
    this.refresh();
  }

  // Back to the rows, which the keys are for.
  leave(pressed) {
    if (!["Enter", "Escape"].includes(pressed.key) || pressed.isComposing) return;
    pressed.preventDefault();
    if (pressed.key === "Escape") this.field.value = "";
    this.typed(true);
    this.heading.focus();
    if (this.rows.items.length) this.rows.stand(Math.max(0, this.rows.at), true);
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
    let { items, next } = await firstOf((at) => pageOf(at, { signal: this.signal }), path);
    if (this.at.key === "sent") items = items.map((one) => ({ ...one, from_address: whose(one.recipient), subject: titled(one.subject, one.id), received_at: one.created_at, snippet: said(one.status), tags: one.tag ? [one.tag] : [] }));
    return { items: items.filter((one) => !this.gone.has(one.id) && !this.mail.going.has(one.id) && !(this.swept && one.received_at < this.until)), next };
  }

  async first() {
    const { path } = this;
    try {
      const { items, next } = await this.load(path);
      if (this.path !== path) return; // asked anew meanwhile
      say(this.trouble, "");
      this.wrong = "";
      this.next = next;
      this.tallied = null;
      for (const item of items) this.mail.rail.note(item.tags);
      this.rows.start(items, next !== null, this.shown === path);
      this.shown = path;
      this.state();
      await this.resume();
      this.mail.reader.around();
    } catch (error) {
      if (this.signal.aborted || this.path !== path) return;
      if (!this.q || error.status !== 422) {
        say(this.trouble, error.message);
        return;
      }
      // Rows of the search before would be no answer to this one.
      this.wrong = error.message.replace(/(^|: )q: /, "$1").replace(/^\w+ /, (word) => word[0].toUpperCase() + word.slice(1));
      this.rows.start([], false);
      this.state();
    }
  }

  // Where it was left in this tab, at first; what is read is among the rows, so that j and k go on from it.
  async resume() {
    if (this.resumes) return;
    this.resumes = true;
    const kept = places.of(this.href());
    const { reading } = this.mail;
    if (reading && (await this.rows.reach(reading, kept?.far)) >= 0) this.rows.mark(reading);
    // Beside another message than then, that one's row is what is wanted.
    if (kept && (!reading || kept.reading === reading)) await this.rows.goTo(kept);
    this.resumed = true;
  }

  keepPlace() {
    if (!this.resumed) return; // left on the way there
    const { place } = this.rows;
    places.keep(this.href(), place && { ...place, reading: this.mail.reading });
  }

  async nextPage() {
    const { path, next } = this;
    const got = await this.load(next);
    if (this.path !== path || this.next !== next) return null;
    this.next = got.next;
    setTimeout(() => this.state());
    return { items: got.items, more: got.next !== null };
  }

  // What stands in place of rows.
  state() {
    const { length } = this.rows.items;
    const empty = length === 0;
    const open = this.q.split('"').length % 2 === 0; // what stands behind is one phrase
    const hits = this.rows.more ? t("more than {0} found", number(length)) : t("{0} found", number(length));
    say(this.hits, !this.q || empty ? "" : open ? `${hits} · ${t("a quotation mark is not closed")}` : hits);
    const state = `${this.q}\n${this.wrong}`;
    if (this.empty.hidden !== empty && state === this.emptyFor) return;
    this.empty.hidden = !empty;
    this.rows.element.hidden = empty;
    this.emptyFor = state;
    if (!empty) return;
    if (this.q) this.empty.replaceChildren(h("p.none", { role: "status", text: this.wrong || (open ? t("No message matches: a quotation mark is not closed.") : t("No message matches.")) }));
    else if (this.at.key === "sent") this.empty.replaceChildren(h("p.none", t("Nothing was sent yet.")), inTerminal("queue"));
    else if (this.at.tag) this.empty.replaceChildren(h("p.none", t("No message has this tag.")));
    else this.empty.replaceChildren(firstMail(this.at.address ?? null, this.page, this.signal));
  }

  chosenItems() {
    return this.rows.items.filter((item) => this.rows.picked.has(item.id));
  }

  // What the chosen are: rows, or the list itself where all that match are meant.
  showPicked() {
    const count = this.rows.picked.size;
    if (count < this.rows.items.length) this.all = false;
    this.chosen.hidden = count === 0;
    if (!count) return;
    const none = () => this.rows.pickNone();
    const what = () => (this.all ? this : this.chosenItems());
    const mark = (isRead) => doing(this.trouble, () => this.mail.mark(what(), isRead).then(none));
    const removeThem = () => {
      if (this.all) return this.mail.sweep(this);
      const items = this.chosenItems();
      none();
      this.mail.remove(items);
    };
    if (!this.chosen.firstChild) {
      this.chosen.append(h("span"), button(t("All"), doing(this.trouble, () => this.chooseAll()), { title: t("All that are in this list, or match the search") }),
        button(t("Read"), mark(true)), button(t("Unread"), mark(false)),
        button(t("Tag"), () => this.mail.tag(what(), none), { ariaLabel: t("Tag the chosen") }),
        this.page.may("send") ? button(t("Forward"), doing(this.trouble, () => this.mail.release(what())), { ariaLabel: t("Forward the chosen") }) : "",
        button(t("Delete"), removeThem, { ariaLabel: t("Delete the chosen") }), button(t("None"), none));
    }
    const { items, more } = this.rows;
    if (more) this.tally().catch(() => {}); // the button says no number, then
    const { total } = this;
    say(this.chosen.children[1], more && total ? (this.asked ? t("All {0} that match", total) : t("All {0}", total)) : more ? t("All that match") : this.q ? t("All {0} that match", number(items.length)) : t("All {0}", number(items.length)));
    say(this.chosen.firstChild, this.all ? [t("All that match are chosen"), total].filter(Boolean).join(": ") : t("{0} chosen", count));
  }

  // How many there are, asked once rows are chosen of more than are loaded; "+": perhaps more.
  async tally() {
    const { path } = this;
    if (this.tallied === path) return;
    this.tallied = path;
    this.total = "";
    const { count, more } = await get(`${this.place}/messages/count${query({ q: this.asked })}`, { signal: this.signal });
    if (path !== this.path) return;
    this.total = number(count) + (more ? "+" : "");
    this.showPicked();
  }

  get place() {
    return this.at.address ? base(this.at.address) : "/api/v1";
  }

  get asked() {
    const { tag } = this.at;
    return [tag ? `tag:${quoted(tag)}` : "", this.q].filter(Boolean).join(" ");
  }

  // The address of all of this list up to its newest row: what comes later was not meant.
  get everything() {
    // The time first: quotes that are not closed reach to the end.
    return `${this.place}/messages${query({ q: `before:${this.until} ${this.asked}`.trim() })}`;
  }

  // All that match, not only what was loaded so far.
  chooseAll() {
    this.all = this.at.key !== "sent" && (this.rows.more || this.rows.items.length > MOST);
    this.until = new Date(Date.parse(this.rows.items[0]?.received_at) + 1).toISOString();
    this.rows.pickAll();
  }

  // What a search may go on with, below its field.
  suggest() {
    if (this.at.key === "sent") return;
    const [word] = this.field.value.split(/\s/).slice(-1);
    const before = this.field.value.slice(0, this.field.value.length - word.length);
    const tags = [...this.mail.tags].map((tag) => `tag:${/\s/.test(tag) ? quoted(tag) : tag}`);
    const there = (term, key) => [...new Set(this.rows.items.slice(0, 200).map((item) => item[key]).filter(Boolean))].slice(0, 20).map((value) => term + value);
    const wanted = [...TERMS, ...tags, ...there("from:", "from_address"), ...there("to:", "mailbox")].filter((term) => word && term.startsWith(word.toLowerCase()) && term !== word);
    this.terms.replaceChildren(...wanted.slice(0, 12).map((term) => h("option", { value: before + term })));
  }

  removeInbox() {
    const { address } = this.at;
    asking({
      title: t("Delete this inbox"),
      says: t("Delete {0}? Its mail goes with it.", address),
      does: t("Delete"),
      grave: true,
      act: async () => {
        await send("DELETE", base(address));
        forget(address);
        this.mail.rail.refresh();
        location.hash = "#/mail";
      },
    });
  }
}
