// One message: its code and likeliest link on top, then what it looks like, and what it is made of.
//
// Its HTML is shown in a frame that runs nothing, loads nothing but what the relay hands out, and
// leads nowhere: a link is shown in full first, and opens in a tab that is told no referrer.

import { ask, get, part, send, ticketed } from "./calls.js";
import { button, bytes, copyButton, doing, h, keepFocus, press, problem, say, when } from "./dom.js";
import { asking, field } from "./dialogs.js";
import { away, MessageFrame, outside, spelt } from "./frame.js";
import { senderOf } from "./list.js";
import { places, recall, retain } from "./secrets.js";
import { blocks, coloured, fielded, headersOf, rawOf, valuesOf, written } from "./source.js";
import { showStory } from "./story.js";
import { learn, locale, named, spoken, t } from "./strings.js";

export const base = (address) => `/api/v1/mailboxes/${part(address)}`;

const WIDTHS = { 375: t("As wide as a phone"), 768: t("As wide as a tablet"), full: t("As wide as there is room") };
const FORMS = { HTML: "HTML", Text: t("Text"), Source: t("Source"), Headers: t("Headers"), Raw: t("Raw"), Checks: t("Checks") };
const LIKELY = /verif|confirm|activat|reset|password|log-?in|sign-?in|magic|invit|token|code/i;
const THUMBNAIL = 400_000; // bytes of a picture that is shown beside its name
const THUMBNAILS = 12; // of a message: for each the relay takes it apart anew
const PICTURES = /^image\/(png|jpeg|gif|webp|avif|bmp)$/;
const UNLIKELY = /unsubscri|preferences|privacy|terms|\.(png|gif|jpe?g|css)(\?|$)/i;

export class Reader {
  // `mail`: near() → {newer, older, back}, remove(message), unread(message), seen(message), page.
  constructor(mail) {
    this.mail = mail;
    this.trouble = problem();
    this.element = h("article", { id: "message", "aria-labelledby": "message-subject", hidden: true });
    this.none = h("p.none", t("Choose a message to read it."));
    this.back = h("a.back", t("‹ Back"));
    this.near = [[t("Newer"), "k"], [t("Older"), "j"]].map(([text, key], at) => h("a.button", { text: "↑↓"[at], ariaLabel: text, hidden: true, title: `${text} (${key})` }));
    this.place = h("section.reader", { ariaLabel: t("Reader") }, this.trouble, this.none, this.element);
    this.reading = null;
    this.wanted = 0; // px that it is to be scrolled, once it is as tall: its HTML comes later
    for (const kind of ["wheel", "pointerdown", "keydown"]) this.place.addEventListener(kind, () => (this.wanted = 0), { passive: true });
  }

  // A reload leaves what is read where it was.
  keepPlace() {
    if (this.reading) places.keep(this.reading, { top: this.wanted || this.place.scrollTop });
  }

  resume() {
    if (!this.wanted || this.place.scrollHeight - this.place.clientHeight < this.wanted) return;
    this.place.scrollTop = this.wanted;
    this.wanted = 0;
  }

  get signal() {
    return this.mail.page.signal;
  }

  close() {
    this.reading = this.message = this.story = null;
    this.element.hidden = true;
    this.element.replaceChildren();
    this.none.hidden = false;
    say(this.trouble, "");
  }

  async read(mailbox, id) {
    if (this.reading === id) return;
    this.reading = id;
    this.wanted = places.take(id)?.top ?? 0;
    this.story = null;
    this.element.replaceChildren();
    this.place.scrollTop = 0;
    this.element.setAttribute("aria-labelledby", mailbox ? "message-subject" : "story-title");
    this.none.hidden = true;
    say(this.trouble, "");
    try {
      if (!mailbox) return await this.tell(id);
      const message = await get(`${base(mailbox)}/messages/${part(id)}`, { signal: this.signal });
      if (this.reading !== id) return;
      message.mailbox = mailbox;
      message.tags = this.mail.tagsOf(id) ?? (await send("PATCH", `${base(mailbox)}/messages/${message.id}`, { is_read: true }).catch(() => message)).tags ?? [];
      if (this.reading !== id) return;
      this.message = message;
      this.mail.seen(message);
      this.show(message);
      this.around();
    } catch (error) {
      if (this.signal.aborted || this.reading !== id) return;
      this.close();
      this.none.hidden = true;
      say(this.trouble, error.message);
    }
  }

  // What was sent has a story, which goes on while it is shown.
  async tell(id) {
    const { list, page } = this.mail;
    const story = () => showStory(this.element, page, id, { wanted: () => this.reading === id, refresh: () => list.refresh(), back: list.href() });
    await story();
    if (this.reading !== id) return;
    this.element.hidden = false;
    this.element.querySelector("h2").focus({ preventScroll: true });
    this.story = story;
  }

  // Press a button of the message, where it has one.
  press(what) {
    this.element.querySelector(`#message-${what}`)?.click();
  }

  // It was deleted elsewhere: what is shown is all there is of it, and nothing can be done to it.
  gone() {
    if (!this.message) return;
    this.message = null;
    const acts = this.element.querySelectorAll(".bar > button, #message-tags button, #message-forms :nth-last-child(-n+2), .files, details:has(.files)");
    keepFocus(this.element, () => acts.forEach((one) => one.remove()), () => this.element.querySelector("h2"));
    say(this.trouble, t("This message is deleted."));
    this.around();
  }

  // How it is tagged now, perhaps by others.
  tags({ id, tags }) {
    if (id !== this.message?.id || String(tags) === String(this.message.tags)) return;
    this.message.tags = tags;
    this.retag();
  }

  // Whether it is still there.
  async look() {
    const { message } = this;
    if (!message) return;
    const now = await get(`${base(message.mailbox)}/messages/${message.id}`, { signal: this.signal }).catch((error) => error);
    if (message === this.message && now.status === 404) this.gone();
  }

  // Lead to what is next to the message, as the list has it now.
  around() {
    if (this.story) this.story().catch(() => {}); // the next look tells
    const { newer, older, back } = this.mail.near();
    this.back.href = back;
    [newer, older].forEach((href, at) => {
      this.near[at].hidden = href === null;
      if (href !== null) this.near[at].href = href;
    });
  }

  // Its tags, each of which can be taken away, and a way to more.
  tagged(message) {
    const place = h("span", { id: "message-tags" });
    const fill = this.retag = () => place.replaceChildren(
      ...message.tags.map((tag) => h("span.tag", h("span", { text: tag, dir: "auto" }), button("×", doing(this.trouble, () => this.mail.untag(message, tag).then(fill)), { ariaLabel: t("Remove the tag {0}", tag) }))),
      button(`+ ${t("Tag")}`, () => this.mail.tag([message], fill), { title: t("Tag this message") }));
    fill();
    return place;
  }

  show(message) {
    const { trouble, signal } = this;
    const { page } = this.mail;
    const path = `${base(message.mailbox)}/messages/${message.id}`;
    const sender = valuesOf(message.headers, "from")[0] ?? message.from_address;
    const subject = h("h2", { id: "message-subject", tabindex: "-1", dir: "auto", text: message.subject || t("(no subject)") });
    const body = h("div", { id: "message-body" });
    let framed = null;
    const forms = h("div", { role: "group", ariaLabel: t("Show as"), id: "message-forms" });
    const widths = h("div", { role: "group", ariaLabel: t("Width"), id: "message-widths" });
    const showAs = (name, make) => {
      const one = button(FORMS[name], () => {
        press(one);
        widths.hidden = shades.hidden = name !== "HTML";
        body.className = name.toLowerCase();
        body.replaceChildren(...[make()].flat());
      }, { "aria-controls": "message-body" });
      one.ariaPressed = "false";
      forms.append(one);
      return one;
    };
    for (const [width, name] of Object.entries(WIDTHS)) {
      const one = button(width === "full" ? t("full") : width, () => {
        press(one);
        retain(WIDTH, width);
        body.dataset.width = width;
        framed?.fit();
      }, { title: name, ariaPressed: String(width === remembered()) });
      widths.append(one);
    }
    body.dataset.width = remembered();
    const shades = button(t("dark"), () => {
      const dark = body.dataset.shade !== "dark";
      body.dataset.shade = dark ? "dark" : "light";
      shades.ariaPressed = String(dark);
      framed?.shade(dark);
    }, { id: "message-shades", title: t("As a reader in dark mode shows it"), ariaPressed: "false" });
    body.dataset.shade = "light";
    const first = message.body_html === null ? null : showAs("HTML", () => {
      framed = new MessageFrame(path, { key: (pressed) => this.mail.press?.(pressed), tell: (said) => say(trouble, said), fitted: () => this.resume() });
      return [framed.element];
    });
    const text = message.body_text === null && first ? null : showAs("Text", () => message.body_text?.trim() ? written("message-text", ...blocks(message.body_text, linked)) : h("p.none", t("This message has no text.")));
    showAs("Source", () => first ? coloured(message.body_html) : rawOf(`${path}/raw`, "message-source", signal, fielded));
    const checked = async (links) => (await Promise.all([get(`${path}/checks${links}`, { signal }), learn("checks")]))[0];
    showAs("Headers", () => {
      const own = h("div", { id: "message-verdicts", role: "status" }, verdictsOf({}));
      checked("").then((found) => own.replaceChildren(verdictsOf(found)), (error) => say(own, error.message));
      return headersOf(message.headers, message.received_at, h("section", h("h3", t("What this relay itself finds of the sender")), own, h("p", button(t("The score, and what to change"), () => checks.click()))));
    });
    showAs("Raw", () => rawOf(`${path}/raw`, "message-raw", signal));
    const checks = showAs("Checks", () => {
      const place = h("div", { id: "message-checks", role: "status", text: t("Asking the DNS…") });
      const look = async (links) => {
        place.replaceChildren(...checksOf(await checked(links)), links || !message.links.length ? "" : h("p", button(t("Ask the links, too"), doing(trouble, () => look("?links=true")), { title: t("Whether each answers: their servers see the relay's address") })));
      };
      look("").catch((error) => say(place, error.message));
      return place;
    });
    this.element.replaceChildren(
      h("div.bar", this.back, ...this.near,
        h("span.space"),
        page.may("send") ? button(t("Reply"), () => reply(message, this.mail), { id: "message-reply", title: t("Answer it from this inbox's address (r)") }) : "",
        page.may("send") ? button(t("Forward"), doing(trouble, () => this.mail.release([message])), { id: "message-forward", title: t("Release it: it goes on as it came, byte for byte (f)") }) : "",
        button(t("Unread"), doing(trouble, () => this.mail.unread(message)), { title: t("Mark unread (u)") }),
        button(t("Delete"), () => this.mail.remove([message]), { title: t("Delete (#)") })),
      h("header.head",
        subject,
        h("p", { id: "message-facts" },
          h("b", { text: senderOf(sender), dir: "auto" }), senderOf(sender) === message.from_address ? "" : [" <", h("bdi", message.from_address), ">"], " → ", h("bdi", message.to)),
        ["To", "Cc"].map((name) => fieldOf(message, name)),
        h("p.bar.facts",
          h("time", { dateTime: message.received_at, text: when(message.received_at) }), h("span", bytes(message.size)),
          button(t("Download"), doing(trouble, () => download(`${path}/raw`, `${message.id}.eml`))),
          page.may("admin") ? h("a", { href: `#/logs?text=${message.id}`, text: t("Log lines") }) : "",
          this.tagged(message)),
        message.error ? h("p.problem", { lang: "en", text: message.error }) : "",
        message.otp ? h("p", { id: "message-code" }, h("span", t("Code ")), h("output", message.otp), " ", copyButton(message.otp, t("the code"))) : "",
        linksOf(message.links),
        attached(path, message, trouble, signal)),
      h("div.bar", forms, h("span.space"), h("span.looks", shades, widths)),
      body,
    );
    this.element.hidden = false;
    (first ?? text).click();
    subject.focus({ preventScroll: true });
    this.resume();
  }
}

// A text with what is an address of the web in it as links; a full stop behind one is none of it.
const linked = (text) => text.split(/(https?:\/\/[^\s<>"]*[^\s<>".,:;!?'*)\]])/i).map((one, at) => (at % 2 ? away(one) : one));

// Whom its fields name, where that says more than whom it came to.
function fieldOf(message, name) {
  const said = valuesOf(message.headers, name.toLowerCase()).join(", ").slice(0, 2000);
  const alone = said.replace(/^.*<|>\s*$/g, "").trim().toLowerCase();
  return !said || alone === message.to.toLowerCase() ? "" : said.length > 200
    ? h("details.small.named", h("summary", `${name}: `, h("bdi", `${said.slice(0, 60)}…`)), h("bdi", said))
    : h("p.small", `${name}: `, h("bdi", said));
}

const WIDTH = "relay.preview_width";

function remembered() {
  const width = recall(WIDTH);
  return Object.hasOwn(WIDTHS, width) ? String(width) : "full";
}

// A sentence of the relay's, in the page's language where that knows it.
function worded(text) {
  const said = spoken(text);
  return h("span", said ? { text: said } : { text, lang: "en" });
}

// What to change where a check of the sender costs points.
const MENDS = {
  SPF: t("SPF does not let in the server that it came from: name that in the record of the domain of its return path."),
  DKIM: t("No DKIM signature holds: have it signed by a key that its domain publishes."),
  DMARC: t("DMARC does not pass: publish a policy, and sign as the domain of From, or send from that."),
};

// A line for each check of the sender; where there is no verdict yet, it is asked for.
const verdictsOf = (found) => h("dl", ["SPF", "DKIM", "DMARC"].flatMap((name) => {
  const { result, detail } = found[name.toLowerCase()] ?? {};
  return [h("dt", name), h("dd", ...(result ? [h("b", { class: `verdict is-${result}`, lang: "en", text: result }), " ", worded(detail)] : [t("Asking the DNS…")]))];
}));

function checksOf(found) {
  const { score, reasons, findings } = found;
  const said = score >= 9 ? "good" : score >= 6 ? "fair" : "poor";
  const lost = Object.fromEntries(reasons.map((one) => one.split(" ").slice(0, 2).reverse()));
  const all = [...Object.entries(MENDS).filter(([id]) => lost[id]).map(([id, what]) => ({ id, what, severity: lost[id] < -1 ? "error" : "warning" })), ...findings];
  return [
    h("p", { class: `score is-${said}` }, h("strong", t("{0} of 10", score.toLocaleString(locale))), " ",
      all.length ? t("What to change, the worst first:") : t("Nothing to mend.")),
    all.length
      ? h("ul.findings", { ariaLabel: t("What to mend") }, ["error", "warning", "note"].flatMap((kind) => all.filter((one) => one.severity === kind)).map(({ id, severity, text, what }) => h("li", { class: severity },
        h("b", named(severity)), lost[id] ? h("span.small", " ", t("{0} of 10", Number(lost[id]).toLocaleString(locale))) : "", " ", what ?? worded(text))))
      : "",
    verdictsOf(found),
  ].filter(Boolean);
}

function linksOf(links) {
  if (!links.length) return "";
  const likely = links.find((one) => outside(one) && LIKELY.test(one) && !UNLIKELY.test(one))
    ?? links.find((one) => outside(one) && !UNLIKELY.test(one));
  const rest = links.filter((one) => one !== likely);
  return h("div.links",
    likely ? h("p", { id: "message-link" }, h("span", t("Link ")), away(likely), copyButton(spelt(likely), t("the link"))) : "",
    rest.length
      ? h("details", { id: "message-links" }, h("summary", rest.length === 1 ? (likely ? t("1 more link") : t("1 link")) : likely ? t("{0} more links", rest.length) : t("{0} links", rest.length)),
        h("ul", rest.map((target) => h("li", outside(target) ? away(target) : h("code", target), " ", copyButton(spelt(target), t("the link"))))))
      : "");
}

// What the HTML shows by itself is folded.
function attached(path, { attachments, body_html: html }, trouble, signal) {
  const shown = (one) => one.content_id && html?.includes(`cid:${one.content_id}`);
  const inline = attachments.filter(shown);
  return [
    attachmentsOf(path, attachments.filter((one) => !shown(one)), { id: "message-attachments", ariaLabel: t("Attachments") }, trouble, signal),
    inline.length
      ? h("details", h("summary", inline.length === 1 ? t("1 picture in the message") : t("{0} pictures in the message", inline.length)), attachmentsOf(path, inline, { ariaLabel: t("Pictures in the message") }, trouble, signal))
      : "",
  ];
}

function attachmentsOf(path, attachments, said, trouble, signal) {
  if (!attachments.length) return "";
  const get = (one) => doing(trouble, () => download(`${path}/attachments/${one.index}`, one.filename ?? ""));
  const pictures = [];
  const list = h("ul.files", { ...said },
    attachments.map((one) => {
      const name = one.filename ?? t("attachment {0}", one.index);
      const made = h("button", { type: "button", onclick: get(one), title: t("Download: {0}", one.content_type) },
        h("span.kind", { text: (/\.([a-z0-9]{1,4})$/i.exec(name)?.[1] ?? "?").toLowerCase(), "aria-hidden": "true" }),
        h("span.name", { dir: "auto", text: name }), h("span.small", bytes(one.size)));
      if (said.id && PICTURES.test(one.content_type) && one.size <= THUMBNAIL) pictures.push([`${path}/attachments/${one.index}`, one.content_type, made, signal]);
      return h("li", made);
    }));
  thumbnails(pictures.slice(0, THUMBNAILS));
  return list;
}

// One after the other, while their message is shown: the next one must not wait for them.
async function thumbnails(pictures) {
  await null; // until it is
  for (const one of pictures) if (one[2].isConnected) await thumbnail(...one);
}

// The page loads no picture: one that it has itself, it may show.
async function thumbnail(path, type, place, signal) {
  try {
    const content = await (await ask(path, { signal })).arrayBuffer();
    const reader = new FileReader();
    reader.onload = () => place.querySelector(".kind").replaceWith(h("img", { src: reader.result, alt: "" }));
    reader.readAsDataURL(new Blob([content], { type }));
  } catch {
    // its name has to do
  }
}

// An answer, from the address that the message came to.
function reply(message, mail) {
  const [to] = valuesOf(message.headers, "reply-to").concat(valuesOf(message.headers, "from"), message.from_address);
  const [id] = valuesOf(message.headers, "message-id");
  const said = (message.body_text ?? "").slice(0, 5000).split("\n").map((line) => `> ${line}`).join("\n");
  const text = field("text", t("Text"), { rows: 10, value: `\n\n${said}`, autofocus: true });
  text.control.setSelectionRange(0, 0); // what is typed stands above what is quoted
  asking({
    title: t("Reply"),
    says: t("From {0}", message.mailbox),
    fields: [
      field("to", t("To"), { value: to }),
      field("subject", t("Subject"), { value: /^re:/i.test(message.subject ?? "") ? message.subject : `Re: ${message.subject ?? ""}` }),
      text,
    ],
    does: t("Send"),
    draft: `reply ${message.id}`,
    act: async ({ to: wanted, subject, text }) => {
      const headers = id ? { "In-Reply-To": id, References: id } : {};
      await send("POST", "messages/send", { from: message.mailbox, to: [wanted], subject, text, headers });
      mail.say(t("Queued."));
    },
  });
}

// A link could not carry the page's key, and one with a ticket is soon too old: so it is made now.
async function download(path, name) {
  h("a", { href: await ticketed(path), download: name }).click();
}
