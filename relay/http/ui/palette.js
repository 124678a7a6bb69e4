// Ctrl K or ⌘K: a field that finds views, inboxes, messages and actors, and does things.

import { get, part, query, send } from "./calls.js";
import { commanding, tell } from "./dialogs.js";
import { fitting, h, settled, since } from "./dom.js";
import { senderOf } from "./list.js";
import { named, t } from "./strings.js";

const MOST = 6; // of a kind
const LOOKED = 100; // messages of which these are the nearest

// What is just that stands first, then what has it as whole words, then words that begin so: each
// time the beginning before the middle.
const nearest = (wanted) => {
  const words = (text) => ` ${text.toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu)?.join(" ") ?? text}`;
  const asked = words(wanted);
  const has = (text, part) => (text.startsWith(part) ? 2 : Number(text.includes(part)));
  const near = ({ title }) => {
    const text = words(title);
    return (text === asked) + 3 * has(`${text} `, `${asked} `) + has(text, asked);
  };
  return (one, other) => near(other) - near(one);
};

// What it does may say something, or fail, when this is closed.
async function act(one) {
  const said = (text) => tell(one.title, text);
  try {
    await one.act(said);
  } catch (error) {
    said(error.message);
  }
}

// `page`: {may, views() → [{title, href}], actions() → [{title, act(tell), key, also,
// here}]: `also` is found, too, and what is to be done `here` comes first, more(words, options) → the
// same with a kind, and a promise of it}.
export function palette(page) {
  if (document.querySelector("dialog[open]")) return;
  const left = new AbortController();
  const field = h("input", { type: "text", placeholder: t("Find an inbox, a message, an actor, or something to do"), ariaLabel: t("Find or do"), role: "combobox", "aria-expanded": "true", "aria-controls": "palette-found", autocomplete: "off", spellcheck: false });
  const found = h("ul", { id: "palette-found", role: "listbox", ariaLabel: t("Found") });
  const dialog = h("dialog", { id: "palette", ariaLabel: t("Find or do"), onclose: () => {
    left.abort();
    dialog.remove();
  } }, field, found);
  let [asked, at, known] = ["", 0, []];

  const choose = (one) => {
    dialog.close();
    if (one.href) location.href = one.href;
    else act(one);
  };
  const stand = (to) => {
    at = Math.max(0, Math.min(to, known.length - 1));
    [...found.children].forEach((row, index) => {
      row.ariaSelected = String(index === at);
      if (index === at) {
        row.scrollIntoView({ block: "nearest" });
        field.setAttribute("aria-activedescendant", row.id);
      }
    });
  };
  const show = (items) => {
    known = items;
    found.replaceChildren(...items.map((one, index) => h("li", { id: `found-${index}`, role: "option", onclick: () => choose(one) },
      h("span.kind", one.kind), h("span.name", { dir: "auto", text: one.title }), one.says ? h("span.small", { dir: "auto", text: one.says }) : "", one.key ? h("kbd", one.key) : "")));
    stand(0);
  };
  const here = (wanted) => {
    const fits = fitting(wanted);
    const done = page.actions().map((one) => ({ kind: t("do"), ...one }));
    return [
      ...done.filter(({ here }) => here),
      ...page.views().map((one) => ({ ...one, kind: t("go to") })),
      ...done.filter(({ here }) => !here),
    ].filter(({ title, kind, also = "" }) => fits(`${title} ${kind} ${also}`)).sort(nearest(wanted));
  };
  const options = { signal: left.signal };
  async function actors(wanted) {
    const found = [];
    const walk = ({ name, commands, children }) => {
      found.push({ kind: t("actor"), title: name, says: t("its log"), href: `#/logs?actor=${part(name)}` });
      for (const verb of commands) found.push({ kind: t("do"), title: `${name}: ${named(verb)}`, act: () => commanding(name, verb, () => send("POST", `supervision/${part(name)}/${verb}`)) });
      children.forEach(walk);
    };
    walk(await get("supervision", options));
    const fits = fitting(wanted);
    return found.filter(({ title }) => fits(title)).sort(nearest(wanted)).sort((one, other) => Boolean(one.act) - Boolean(other.act)).slice(0, 2 * MOST);
  }
  async function look() {
    const wanted = field.value.trim();
    if (wanted === asked) return;
    asked = wanted;
    const first = here(wanted);
    show(first);
    if (!wanted) return;
    const none = () => []; // what cannot be asked is not found
    const mail = (q, limit) => (page.may("read") ? get(`messages${query({ q, limit })}`, options).catch(none) : []);
    const [inboxes, subjects, messages, nodes, others] = await Promise.all([
      page.may("read") ? get(`mailboxes${query({ q: wanted, limit: MOST })}`, options).catch(none) : [],
      mail(`subject:"${wanted.replaceAll('"', "")}"`, LOOKED), // the newest with such words are not the nearest
      mail(wanted, MOST),
      page.may("admin") ? actors(wanted).catch(none) : [],
      page.more(wanted, options).then((found) => found.slice(0, MOST), none),
    ]);
    if (asked !== wanted || left.signal.aborted) return;
    const listed = new Set(first.map((one) => one.href));
    const letters = [...new Map([...subjects, ...messages].map((one) => [one.id, one])).values()];
    show([
      ...first,
      ...inboxes.filter((one) => !listed.has(`#/mail/${part(one.address)}`)).map((one) => ({ kind: t("inbox"), title: one.address, href: `#/mail/${part(one.address)}` })),
      ...letters.map((one) => ({ kind: t("message"), title: one.subject?.slice(0, 300) || t("(no subject)"), says: `${since(one.received_at)} · ${one.from_name || senderOf(one.from_address)} → ${one.mailbox}`, href: `#/mail/all/${part(one.mailbox)}/${one.id}` })).sort(nearest(wanted)).slice(0, MOST),
      ...nodes,
      ...others,
      ...(page.may("read") ? [{ kind: t("search"), title: wanted, says: t("in all mail"), href: `#/mail/all${query({ q: wanted })}` }] : []),
    ]);
  }
  field.addEventListener("input", settled(() => look()));
  field.addEventListener("keydown", async (pressed) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[pressed.key];
    if (by) stand(at + by);
    else if (pressed.key === "Enter") {
      await look(); // what was typed since
      if (known[at]) choose(known[at]);
    } else return;
    pressed.preventDefault();
  });
  show(here(""));
  document.body.append(dialog);
  dialog.showModal();
  field.focus();
}
