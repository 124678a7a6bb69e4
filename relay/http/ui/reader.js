// One message: its code and likeliest link on top, then what it looks like, and what it is made of.
//
// Its HTML is shown in a frame with an empty sandbox, of no origin, that loads nothing and leads
// nowhere: links stand beside it in full, and open in a tab that is told no referrer.

import { ask, get, ticketed } from "/ui/calls.js";
import { button, bytes, copyButton, doing, h, problem, say, when } from "/ui/dom.js";
import { senderOf } from "/ui/list.js";

export const base = (address) => `/api/v1/mailboxes/${encodeURIComponent(address)}`;

const SHOWN = 1_000_000; // bytes of a raw message
const WIDTHS = { 375: "phone", 768: "tablet", full: "full" };
const LIKELY = /verif|confirm|activat|reset|password|log-?in|sign-?in|magic|invit|token|code/i;
const UNLIKELY = /unsubscri|preferences|privacy|terms|\.(png|gif|jpe?g|css)(\?|$)/i;

export class Reader {
  // `mail`: near() → {newer, older, back}, remove(message), unread(message), seen(message), page.
  constructor(mail) {
    this.mail = mail;
    this.trouble = problem();
    this.element = h("article", { id: "message", "aria-labelledby": "message-subject", hidden: true });
    this.none = h("p", { class: "none", text: "Choose a message to read it." });
    this.back = h("a", { class: "back", text: "‹ Back" });
    this.near = ["Newer", "Older"].map((text) => h("a", { text, hidden: true, title: text === "Newer" ? "Newer (k)" : "Older (j)" }));
    this.place = h("section", { class: "reader", "aria-label": "Reader" }, this.trouble, this.none, this.element);
    this.reading = null;
  }

  get signal() {
    return this.mail.page.signal;
  }

  close() {
    this.reading = null;
    this.element.hidden = true;
    this.element.replaceChildren();
    this.none.hidden = false;
    say(this.trouble, "");
  }

  async read(mailbox, id) {
    if (this.reading === id) return;
    this.reading = id;
    this.element.replaceChildren();
    this.none.hidden = true;
    say(this.trouble, "");
    try {
      const message = await get(`${base(mailbox)}/messages/${encodeURIComponent(id)}`, { signal: this.signal });
      if (this.reading !== id) return;
      message.mailbox = mailbox;
      this.mail.seen(message);
      this.show(message);
      this.around();
    } catch (error) {
      if (this.signal.aborted || this.reading !== id) return;
      this.close();
      say(this.trouble, error.message);
    }
  }

  // Lead to what is next to the message, as the list has it now.
  around() {
    const { newer, older, back } = this.mail.near();
    this.back.href = back;
    [newer, older].forEach((href, at) => {
      this.near[at].hidden = href === null;
      if (href !== null) this.near[at].href = href;
    });
  }

  show(message) {
    const { trouble, signal } = this;
    const { page } = this.mail;
    const path = `${base(message.mailbox)}/messages/${message.id}`;
    const sender = [header(message.headers, "from") ?? message.from_address].flat()[0];
    const subject = h("h2", { id: "message-subject", tabindex: "-1", dir: "auto", text: message.subject || "(no subject)" });
    const body = h("div", { id: "message-body" });
    const forms = h("div", { role: "group", "aria-label": "Show as", id: "message-forms" });
    const widths = h("div", { role: "group", "aria-label": "Width", id: "message-widths" });
    const press = (group, one) => {
      for (const other of group.children) other.ariaPressed = String(other === one);
    };
    const showAs = (name, make) => {
      const one = button(name, () => {
        press(forms, one);
        widths.hidden = name !== "HTML";
        body.className = name.toLowerCase();
        body.replaceChildren(...[make()].flat());
      }, { "aria-controls": "message-body" });
      one.ariaPressed = "false";
      forms.append(one);
      return one;
    };
    for (const [width, name] of Object.entries(WIDTHS)) {
      const one = button(width, () => {
        press(widths, one);
        remember(width);
        body.dataset.width = width;
      }, { title: `As wide as a ${name}`, ariaPressed: String(width === remembered()) });
      if (width === "full") one.title = "As wide as there is room";
      widths.append(one);
    }
    body.dataset.width = remembered();
    const pre = (id, text) => h("pre", { id, tabindex: "0", dir: "auto", "aria-label": "The message as text", text });
    const first = message.body_html === null ? null : showAs("HTML", () => {
      // No script, no form, no navigation of the page; it has no origin and loads nothing.
      const frame = h("iframe", { title: "The message as HTML", id: "message-html" });
      frame.setAttribute("sandbox", "");
      ticketed(`${path}/html`).then((url) => (frame.src = url)).catch((error) => say(trouble, error.message));
      return message.links.length ? [h("p", { class: "small", text: "Links do not open in here: they stand above, in full." }), frame] : [frame];
    });
    const text = message.body_text === null && first ? null : showAs("Text", () => pre("message-text", message.body_text ?? ""));
    showAs("Headers", () => headersOf(message.headers));
    showAs("Raw", () => {
      const place = pre("message-raw", "Loading…");
      ask(`${path}/raw`, { signal })
        .then((response) => response.arrayBuffer())
        .then((raw) => say(place, new TextDecoder("latin1").decode(raw.slice(0, SHOWN)) + (raw.byteLength > SHOWN ? "\n… the rest is in the download" : "")))
        .catch((error) => say(place, error.message));
      return place;
    });
    showAs("Checks", () => {
      const place = h("div", { id: "message-checks", role: "status", text: "Asking the DNS…" });
      get(`${path}/checks`, { signal }).then((found) => place.replaceChildren(...checksOf(found))).catch((error) => say(place, error.message));
      return place;
    });
    this.element.replaceChildren(
      h("div", { class: "bar" }, this.back, ...this.near,
        h("span", { class: "space" }),
        button("Unread", doing(trouble, () => this.mail.unread(message)), { title: "Mark unread (u)" }),
        button("Download", doing(trouble, () => download(`${path}/raw`, `${message.id}.eml`))),
        page.may("admin") ? h("a", { href: `#/logs?text=${message.id}`, text: "Log lines" }) : "",
        button("Delete", () => this.mail.remove([message]), { title: "Delete (#)" })),
      h("header", { class: "head" },
        subject,
        h("p", { id: "message-facts" },
          h("b", { text: senderOf(sender), dir: "auto" }), senderOf(sender) === message.from_address ? "" : ` <${message.from_address}>`, ` to ${message.to} · `,
          h("time", { dateTime: message.received_at, text: when(message.received_at) }), ` · ${bytes(message.size)}`),
        message.error ? h("p", { class: "problem", text: message.error }) : "",
        message.otp ? h("p", { id: "message-code" }, h("span", { text: "Code " }), h("output", { text: message.otp }), " ", copyButton(message.otp, "the code")) : "",
        linksOf(message.links),
        attachmentsOf(path, message.attachments, trouble)),
      h("div", { class: "bar" }, forms, h("span", { class: "space" }), widths),
      body,
    );
    this.element.hidden = false;
    (first ?? text).click();
    subject.focus({ preventScroll: true });
  }
}

const WIDTH = "relay.preview_width";

function remembered() {
  try {
    const width = localStorage.getItem(WIDTH);
    return Object.hasOwn(WIDTHS, width) ? width : "full";
  } catch {
    return "full";
  }
}

function remember(width) {
  try {
    localStorage.setItem(WIDTH, width);
  } catch {
    // no storage: it is asked for again
  }
}

const header = (headers, name) => Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];

function headersOf(headers) {
  const rows = Object.entries(headers).flatMap(([name, values]) => [values].flat().map((value) => [name, value]));
  return h("dl", { id: "message-headers" }, rows.map(([name, value]) => [h("dt", { text: name }), h("dd", { text: value })]).flat());
}

function checksOf({ spf, dkim, dmarc, score, findings }) {
  const verdicts = Object.entries({ SPF: spf, DKIM: dkim, DMARC: dmarc });
  return [
    h("p", {}, h("strong", { text: `${score} of 10` }), findings.length ? "" : ": nothing to mend."),
    h("dl", {}, verdicts.map(([name, { result, detail }]) => [h("dt", { text: name }), h("dd", {}, h("b", { class: `verdict is-${result}`, text: result }), ` ${detail}`)]).flat()),
    findings.length
      ? h("ul", { class: "attention", "aria-label": "What to mend" }, findings.map(({ severity, text }) => h("li", { class: severity, text })))
      : "",
  ];
}

const outside = (target) => /^https?:/i.test(target);

// A link to elsewhere, in full: a new tab, told neither where it comes from nor who opened it.
const away = (target, text = target) => h("a", { href: target, rel: "noopener noreferrer", target: "_blank", text });

function linksOf(links) {
  if (!links.length) return "";
  const likely = links.find((one) => outside(one) && LIKELY.test(one) && !UNLIKELY.test(one))
    ?? links.find((one) => outside(one) && !UNLIKELY.test(one));
  const rest = links.filter((one) => one !== likely);
  return h("div", { class: "links" },
    likely ? h("p", { id: "message-link" }, h("span", { text: "Link " }), away(likely), copyButton(likely, "the link")) : "",
    rest.length
      ? h("details", { id: "message-links" }, h("summary", { text: `${rest.length} ${likely ? "more " : ""}${rest.length === 1 ? "link" : "links"}` }),
        h("ul", {}, rest.map((target) => h("li", {}, outside(target) ? away(target) : h("code", { text: target }), " ", copyButton(target, "the link")))))
      : "");
}

function attachmentsOf(path, attachments, trouble) {
  if (!attachments.length) return "";
  const get = (one) => doing(trouble, () => download(`${path}/attachments/${one.index}`, one.filename ?? ""));
  return h("ul", { id: "message-attachments", "aria-label": "Attachments" },
    attachments.map((one) => h("li", {}, button(one.filename ?? `attachment ${one.index}`, get(one), { title: `Download: ${one.content_type}` }), h("span", { text: ` ${bytes(one.size)}` }))));
}

// A link could not carry the page's key, and one with a ticket is soon too old: so it is made now.
async function download(path, name) {
  h("a", { href: await ticketed(path), download: name }).click();
}
