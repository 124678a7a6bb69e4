// Inboxes: make one, watch mail arrive, read it.
//
// A message's HTML is shown only in a frame with an empty sandbox.  An anonymous inbox is this
// browser's: its token became a cookie of that inbox alone and a key, which the page remembers with
// the address.

import { ask, clock, eventsIn, every, get, keepUp, page as pageOf, query, send, ticketed } from "/ui/calls.js";
import { button, bytes, copyButton, doing, fill, h, lasting, number, Pages, problem, say, settled, Table, when } from "/ui/dom.js";
import { inboxes, keepInboxes } from "/ui/secrets.js";

export const title = "Inboxes";
export const scope = null;

const base = (address) => `/api/v1/mailboxes/${encodeURIComponent(address)}`;
const link = (address, id) => `#/inboxes/${encodeURIComponent(address)}${id ? `/${id}` : ""}`;

// What this browser made without a key ---------------------------------------------------------------

const EVERY = 5000; // ms between two looks at the list of inboxes
const PAGE = 50; // rows
const kept = () => inboxes().filter((one) => new Date(one.expires_at) > clock.now());

const forget = (address) => keepInboxes(kept().filter((one) => one.address !== address));

// The view -----------------------------------------------------------------------------------------

export function open(place, page) {
  const trouble = problem();
  const inbox = h("section", { class: "inbox", "aria-label": "The inbox" });
  const list = makeList(page);
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
        location.hash = link(made.address);
        list.refresh();
      }),
    },
    h("label", { text: "Minutes " }, h("input", { name: "ttl_minutes", type: "number", min: "1", placeholder: "the plan's" })),
    h("label", { text: "Name " }, h("input", { name: "local_part", autocomplete: "off", autocapitalize: "none", spellcheck: false, placeholder: "random" })),
    h("button", { text: "Create" }),
  );
  const makes = page.who === null || page.may("read");
  place.append(
    h("section", { "aria-label": "Make an inbox" }, makes ? form : h("p", { text: "A key makes and reads inboxes with the scope read, which this one has not." }), trouble),
    list.element,
    inbox,
  );

  let shown = null;
  const move = ({ parts: [address, id] }) => {
    if (shown?.address !== address) {
      shown?.left.abort();
      inbox.replaceChildren();
      shown = address ? new Inbox(inbox, address, page, list) : null;
    }
    shown?.read(id ?? null);
    list.mark(address);
  };
  page.signal.addEventListener("abort", () => shown?.left.abort());
  move(page);
  return move;
}

// How full an inbox is, once that matters: what is beyond its quota is turned away.
function usage({ message_count: count, bytes: size, max_messages: most, max_bytes: room }) {
  if (room && size >= 0.8 * room) return `${count}, ${bytes(size)} of ${bytes(room)}`;
  return most && count >= 0.8 * most ? `${count} of ${number(most)}` : count;
}

function makeList(page) {
  const table = new Table("Live inboxes", ["Address", "Messages", "Time left"], { none: "No inbox yet: create one.", id: "inboxes" });
  const search = h("input", { type: "search", name: "q", placeholder: "a part of the address", oninput: settled(() => refresh()) });
  const all = page.may("read");
  const show = (items, fresh) => {
    const make = (row, one) => row.cells[0].append(h("a", { href: link(one.address), text: one.address }));
    const fillRow = (row, one) => {
      say(row.cells[1], usage(one));
      row.cells[1].title = one.bytes === undefined ? "" : `${bytes(one.bytes)}${one.max_bytes ? ` of ${bytes(one.max_bytes)}` : ""}`;
      row.dataset.ends = one.expires_at;
    };
    if (fresh) table.show(items, (one) => one.address, fillRow, make);
    else for (const one of items) table.add(one.address, (row) => fillRow(row, one), (row) => make(row, one));
    countDown();
    mark(marked);
  };
  const pages = new Pages((path) => pageOf(path, { signal: page.signal }), show);
  const quota = h("p");
  async function look() {
    const { mailboxes, max_mailboxes: most } = await get("/api/v1/quota", { signal: page.signal });
    say(quota, most === null ? "" : `${number(mailboxes)} of ${number(most)} inboxes that you may have.`);
    if (all) await pages.start(`/api/v1/mailboxes${query({ q: search.value, limit: PAGE })}`);
    else show(kept().map((one) => ({ ...one, message_count: "" })), true);
  }
  const told = (text) => page.signal.aborted || say(pages.problem, text);
  const refresh = () => look().then(() => told(""), (error) => told(error.message));
  function countDown() {
    for (const [, row] of table.rows) {
      const left = (new Date(row.dataset.ends) - clock.now()) / 1000;
      say(row.cells[2], left > 0 ? lasting(left) : "over");
    }
  }
  let marked;
  function mark(address) {
    marked = address;
    for (const [key, row] of table.rows) row.cells[0].firstChild.ariaCurrent = key === address ? "true" : null;
  }
  // Rows that came by "More" are left alone: a list that jumps cannot be read.
  every(EVERY, page.signal, async () => table.rows.size > PAGE || look(), told);
  const timer = setInterval(countDown, 1000);
  page.signal.addEventListener("abort", () => clearInterval(timer));
  const element = h("section", { "aria-label": "Inboxes" }, all ? h("p", {}, h("label", { text: "Search " }, search)) : null, table.element, pages.element, quota);
  return { element, refresh, mark };
}

class Inbox {
  constructor(place, address, page, list) {
    this.address = address;
    this.page = page;
    this.left = new AbortController();
    this.signal = this.left.signal;
    this.ends = null;
    this.trouble = problem();
    this.state = h("span", { id: "stream", role: "status", text: "connecting" });
    this.expires = h("span", { id: "expires" });
    this.search = h("input", { type: "search", name: "messages", placeholder: "in subject, sender and text", oninput: settled(() => this.refresh()) });
    this.table = new Table("Messages, newest first", ["Received", "From", "Subject", "Size"], { none: "No mail yet.", id: "messages" });
    this.pages = new Pages((path) => pageOf(path, { signal: this.signal }), (items, fresh) => this.show(items, fresh));
    this.near = ["Newer", "Older"].map((text) => h("a", { text, hidden: true }));
    this.message = h("article", { id: "message", "aria-labelledby": "message-subject", hidden: true });
    place.append(
      this.heading = h("h2", { class: "facts", tabindex: "-1" }, h("output", { id: "address", text: address }), copyButton(address, "the address")),
      h("p", { class: "facts" }, this.expires, this.state, button("Delete this inbox", doing(this.trouble, async () => {
        if (!confirm(`Delete ${address}? Its mail goes with it.`)) return;
        await send("DELETE", base(address));
        forget(address);
        list.refresh();
        location.hash = "#/inboxes";
      }))),
      this.trouble,
      h("p", {}, h("label", { text: "Search " }, this.search)),
      this.table.element,
      this.pages.element,
      this.message,
    );
    this.timer = setInterval(() => this.countDown(), 1000);
    this.signal.addEventListener("abort", () => clearInterval(this.timer));
    this.last = null;
    keepUp(this.signal, () => this.follow(), (text) => say(this.state, text));
  }

  async follow() {
    const { signal } = this;
    const response = await ask(`${base(this.address)}/events`, { signal, headers: this.last ? { "Last-Event-ID": this.last } : {} });
    const found = await get(base(this.address), { signal });
    this.ends = new Date(found.expires_at);
    this.countDown();
    if (!this.last) await this.refresh(); // the stream begins at the present
    say(this.state, "listening");
    for await (const event of eventsIn(response)) {
      this.last = event.id ?? this.last;
      if (event.kind !== "new_message") continue;
      if (this.search.value) await this.refresh();
      else {
        await this.loading; // an older list would wipe it out
        this.entry(event.data, true);
        this.around();
      }
    }
    say(this.state, "reconnecting");
  }

  countDown() {
    if (this.ends === null) return;
    const left = (this.ends - clock.now()) / 1000;
    say(this.expires, left > 0 ? `${lasting(left)} left, until ${when(this.ends)}` : "over");
  }

  refresh() {
    this.loading = this.load();
    return this.loading;
  }

  async load() {
    try {
      await this.pages.start(`${base(this.address)}/messages${query({ q: this.search.value, limit: PAGE })}`);
    } catch (error) {
      if (!this.signal.aborted) say(this.trouble, error.message);
    }
  }

  show(items, fresh) {
    if (fresh) this.table.clear();
    for (const one of items) this.entry(one, false);
    this.around();
  }

  // Mark the message that is open, and lead to those next to it as the list has them now.
  around() {
    const open = this.table.rows.get(this.reading);
    for (const row of this.table.rows.values()) row.cells[2].firstChild.ariaCurrent = row === open ? "true" : null;
    [open?.previousElementSibling, open?.nextElementSibling].forEach((row, at) => {
      this.near[at].hidden = !row;
      if (row) this.near[at].href = row.cells[2].firstChild.href;
    });
  }

  entry(one, first) {
    this.table.add(one.id, (row) => {
      fill(row, [when(one.received_at), one.from_address ?? "", undefined, bytes(one.size)]);
      row.classList.toggle("unread", !one.is_read);
      say(row.cells[2].firstChild, (one.subject || "(no subject)") + (one.has_attachments ? " (with attachment)" : ""));
    }, (row) => row.cells[2].append(h("a", { href: link(this.address, one.id) })), first);
  }

  async read(id) {
    this.message.hidden = id === null;
    if (id === null || this.reading === id) return;
    this.reading = id;
    this.message.replaceChildren();
    say(this.trouble, "");
    try {
      const message = await get(`${base(this.address)}/messages/${encodeURIComponent(id)}`, { signal: this.signal });
      if (this.reading !== id) return;
      this.table.rows.get(id)?.classList.remove("unread");
      showMessage(this.message, this, message);
      this.around();
    } catch (error) {
      if (this.signal.aborted || this.reading !== id) return;
      this.reading = null;
      this.message.hidden = true;
      say(this.trouble, error.message);
    }
  }

  async remove(message) {
    await send("DELETE", `${base(this.address)}/messages/${message.id}`);
    const row = this.table.rows.get(message.id);
    const next = row?.nextElementSibling ?? row?.previousElementSibling;
    this.table.remove(message.id);
    this.reading = null; // going back does not find it again
    location.hash = next ? next.cells[2].firstChild.hash : link(this.address);
    if (!next) this.heading.focus();
  }
}

const SHOWN = 1_000_000; // bytes of a raw message

// A message ----------------------------------------------------------------------------------------

function showMessage(place, inbox, message) {
  const path = `${base(inbox.address)}/messages/${message.id}`;
  const subject = h("h3", { id: "message-subject", tabindex: "-1", text: message.subject || "(no subject)" });
  const facts = [`from ${message.from_address || "nobody"}`, `to ${message.to}`, when(message.received_at), bytes(message.size)];
  if (message.error) facts.push(message.error);
  const trouble = problem();
  const body = h("div", { id: "message-body" });
  const forms = h("p", { role: "group", "aria-label": "Show as", id: "message-forms" });
  const showAs = (name, make) => {
    const one = button(name, () => {
      for (const other of forms.children) other.ariaPressed = String(other === one);
      body.replaceChildren(make());
    }, { "aria-controls": "message-body" });
    one.ariaPressed = "false";
    forms.append(one);
    return one;
  };
  const pre = (id, text) => h("pre", { id, tabindex: "0", "aria-label": "The message as text", text });
  const text = showAs("Text", () => pre("message-text", message.body_text ?? ""));
  text.hidden = message.body_text === null && message.body_html !== null;
  const html = showAs("HTML", () => {
    // No script, no form, no navigation of the page; it has no origin and loads nothing.
    const frame = h("iframe", { title: "The message as HTML", id: "message-html" });
    frame.setAttribute("sandbox", "");
    ticketed(`${path}/html`).then((url) => (frame.src = url)).catch((error) => say(trouble, error.message));
    return frame;
  });
  html.hidden = message.body_html === null;
  showAs("Headers", () => headersOf(message.headers));
  showAs("Raw", () => {
    const place = pre("message-raw", "Loading…");
    ask(`${path}/raw`, { signal: inbox.signal })
      .then((response) => response.arrayBuffer())
      .then((raw) => say(place, new TextDecoder("latin1").decode(raw.slice(0, SHOWN)) + (raw.byteLength > SHOWN ? "\n… the rest is in the download" : "")))
      .catch((error) => say(place, error.message));
    return place;
  });
  place.replaceChildren(
    subject,
    h("p", { id: "message-facts", text: facts.join(" · ") }),
    message.otp ? h("p", { class: "facts", id: "message-code" }, h("span", { text: "Code " }), h("output", { text: message.otp }), copyButton(message.otp, "the code")) : "",
    linksOf(message.links),
    attachmentsOf(path, message.attachments, trouble),
    forms,
    body,
    h("p", { class: "facts" }, inbox.near,
      button("Download", doing(trouble, () => download(`${path}/raw`, `${message.id}.eml`))),
      inbox.page.may("admin") ? h("a", { href: `#/logs?text=${message.id}`, text: "Log lines" }) : "",
      button("Delete", doing(trouble, () => inbox.remove(message)))),
    trouble,
  );
  place.hidden = false;
  (text.hidden ? html : text).click();
  subject.focus();
}

function headersOf(headers) {
  const rows = Object.entries(headers).flatMap(([name, values]) => [values].flat().map((value) => [name, value]));
  return h("dl", { id: "message-headers" }, rows.map(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })]).flat());
}

function linksOf(links) {
  if (!links.length) return "";
  return h("details", { id: "message-links", open: links.length <= 3 }, h("summary", { text: `${links.length} ${links.length === 1 ? "link" : "links"}` }),
    h("ul", {}, links.map((target) => h("li", {}, /^https?:/i.test(target) ? h("a", { href: target, rel: "noopener noreferrer", target: "_blank", text: target }) : h("code", { text: target }), " ", copyButton(target, "the link")))));
}

function attachmentsOf(path, attachments, trouble) {
  if (!attachments.length) return "";
  const get = (one) => doing(trouble, () => download(`${path}/attachments/${one.index}`, one.filename ?? ""));
  return h("ul", { id: "message-attachments", "aria-label": "Attachments" },
    attachments.map((one) => h("li", {}, button(one.filename ?? `attachment ${one.index}`, get(one), { title: "Download" }), ` ${one.content_type}, ${bytes(one.size)}`)));
}

// A link could not carry the page's key, and one with a ticket is soon too old: so it is made now.
async function download(path, name) {
  h("a", { href: await ticketed(path), download: name }).click();
}
