// Elements.  Everything from outside is set as text, never as markup.

import { clock } from "./calls.js";
import { locale, t } from "./strings.js";

// `tag` with classes: "span.small"; behind it what the element has, if anything, and what is in it.
export function h(tag, ...children) {
  const properties = children[0]?.constructor === Object ? children.shift() : {};
  const [kind, ...classes] = tag.split(".");
  const made = document.createElement(kind);
  if (classes[0]) made.className = classes.join(" ");
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = [...classes, value].join(" ");
    else if (name === "text") made.textContent = value;
    else if (name in made && name !== "list" && name !== "form") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

export const section = (ariaLabel, ...children) => h("section", { ariaLabel }, ...children);

export const labelled = (text, control) => h("label", `${text} `, control);

// A field for what is no sentence: an address, a name.
export const input = (name, properties) => h("input", { name, autocapitalize: "none", ...properties });

// What there is to say, with a dot between each two.
export const dotted = (said) => said.filter(Boolean).join(" · ");

// A value of a setting or of a line of the log.
export const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value));

// A form that only narrows what is shown: `act` once its filling pauses.
export const narrowing = (id, act, ...fields) => h("form", { id, onsubmit: (submitted) => submitted.preventDefault(), oninput: settled(act) }, ...fields);

// What a form was filled with, by name.
export const filled = (form) => Object.fromEntries(new FormData(form));

export const button = (text, act, properties = {}) => h("button", { type: "button", text, onclick: act, ...properties });

// Prose in which names stand between backticks.
export const coded = (text) => text.split("`").map((part, at) => (at % 2 ? h("code", { lang: "en", text: part }) : part));

// Whether all the words of a search are in a text.
export function fitting(search) {
  const words = search.toLowerCase().split(/\s+/);
  return (text) => words.every((word) => text.toLowerCase().includes(word));
}

// Of the buttons of a group, this one is chosen.
export function press(chosen) {
  for (const one of chosen.parentElement.children) one.ariaPressed = String(one === chosen);
}

// A live region is read out when it changes, so it is changed only when it has to be.
export function say(place, text) {
  const wanted = String(text ?? "");
  if (place.textContent !== wanted) place.textContent = wanted;
}

export const problem = () => h("p.problem", { role: "alert" });

// Change what is in `place`.  Where that takes what has the keyboard's focus away, what `next`
// returns has it.
export function keepFocus(place, change, next) {
  const had = place.contains(document.activeElement);
  change();
  if (had && !place.contains(document.activeElement)) next()?.focus({ preventScroll: true });
}

// Have exactly these children, in this order; what stays is not moved, so that it keeps the focus.
export function arrange(parent, wanted) {
  const staying = new Set(wanted);
  for (const child of [...parent.children]) if (!staying.has(child)) child.remove();
  let next = parent.firstChild;
  for (const child of wanted) {
    if (child === next) next = next.nextSibling;
    else parent.insertBefore(child, next);
  }
}

// `act` once the calls pause: a search is asked for when the typing does.
export function settled(act) {
  let timer;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(act, 200);
  };
}

// Where the page is not secure (plain HTTP by a name) there is no clipboard to write to: what is chosen
// in a field beside the button is copied, as by its user; in a dialog nothing else can be chosen.
function copiedBy(beside, text) {
  const field = h("textarea", { value: text, readOnly: true, class: "unseen" });
  beside.after(field);
  field.focus({ preventScroll: true });
  field.select();
  const well = document.execCommand("copy");
  field.remove();
  beside.focus({ preventScroll: true });
  if (!well) throw new Error("refused");
}

// A button that copies a text, and says so; `copied` shows the text itself.
export const copyButton = (text, what, properties) => copying(t("copy"), text, what, properties);
export const copied = (text, what, properties) => copying(text, text, what, properties);

function copying(shown, text, what, properties = {}) {
  const label = [t("Copy {0}", what), ...(shown === text ? [text] : [])].join(" ");
  const told = (word) => {
    made.textContent = word;
    made.ariaLabel = word === shown ? label : `${label}: ${word}`; // what is seen is in the name
  };
  const made = button(shown, async () => {
    try {
      await (navigator.clipboard ? navigator.clipboard.writeText(text) : copiedBy(made, text));
      told(t("copied"));
    } catch {
      told(t("not allowed"));
    }
    setTimeout(() => told(shown), 1500);
  }, { title: t("Copy {0}", what), ariaLabel: label, ...properties });
  made.classList.add("copy");
  return made;
}

const NS = "http://www.w3.org/2000/svg";

// One line, drawn.
export function drawing(attributes, d = "") {
  const [made, line] = ["svg", "path"].map((name) => document.createElementNS(NS, name));
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  line.setAttribute("d", d);
  made.append(line);
  return made;
}

// A paperclip: not every machine has a font with one.
export const clip = () => drawing({ viewBox: "0 0 16 16", class: "clip", role: "img", "aria-label": t("with attachment") }, "M11 4.5v6.2a3 3 0 0 1-6 0V4a2 2 0 0 1 4 0v6.4a1 1 0 0 1-2 0V5");

// Run `act` for a press of a button; say what went wrong, and let nobody press twice meanwhile.
export const doing = (place, act) => async (pressed) => {
  const pressedButton = pressed.submitter ?? pressed.currentTarget;
  pressed.preventDefault();
  say(place, "");
  if (pressedButton?.ariaDisabled === "true") return;
  if (pressedButton) pressedButton.ariaDisabled = "true";
  try {
    await act(pressed);
  } catch (error) {
    say(place, error.message);
  } finally {
    if (pressedButton) pressedButton.ariaDisabled = null;
  }
};

// A table whose rows are kept by key and changed in place, so that what has the keyboard's focus
// keeps it while the page is live.  On a phone a row is a block, so each cell carries its head.
// `heads`: what each column is called, by the class of its cells; `role`: treegrid, where rows open.
export class Table {
  constructor(caption, heads, properties = {}) {
    const { none, role = "table", ...rest } = properties;
    this.heads = Object.entries(heads);
    this.cell = role === "table" ? "cell" : "gridcell";
    this.rows = new Map();
    this.body = h("tbody", { role: "rowgroup" });
    this.none = h("p.none", none ?? t("None."));
    this.element = h(
      "div",
      { class: "table", ...rest },
      h(
        "table",
        { role },
        h("caption", caption),
        h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, this.heads.map(([, text]) => h("th", { role: "columnheader", scope: "col", text })))),
        this.body,
      ),
      this.none,
    );
  }

  // Return the row of a key, made (by `make(row)`, once) where there is none.
  row(key, make) {
    let row = this.rows.get(key);
    if (!row) {
      row = h("tr", { role: "row" }, this.heads.map(([name, head]) => h("td", { role: this.cell, class: name, "data-head": head })));
      this.rows.set(key, row);
      make?.(row);
    }
    return row;
  }

  // Show exactly these items, in this order.
  show(items, keyOf, fillRow, make) {
    // First what goes: a row that is moved up into its place would lose the focus.
    const wanted = new Set(items.map(keyOf));
    for (const key of [...this.rows.keys()]) if (!wanted.has(key)) this.remove(key);
    let at = 0;
    for (const item of items) {
      const row = this.row(keyOf(item), (made) => make?.(made, item));
      fillRow(row, item);
      if (this.body.rows[at] !== row) this.body.insertBefore(row, this.body.rows[at] ?? null);
      at += 1;
    }
    this.count();
  }

  add(key, fillRow, make, first = false) {
    const row = this.row(key, make);
    fillRow(row);
    if (!row.parentNode) first ? this.body.prepend(row) : this.body.append(row);
    this.count();
    return row;
  }

  remove(key) {
    const row = this.rows.get(key);
    if (!row) return;
    const near = row.nextElementSibling ?? row.previousElementSibling;
    keepFocus(row, () => row.remove(), () => near?.querySelector("button, a"));
    this.rows.delete(key);
    this.count();
  }

  count() {
    this.none.hidden = this.rows.size > 0;
  }
}

export function fill(row, values) {
  values.forEach((value, at) => {
    if (value !== undefined) say(row.cells[at], value);
  });
}

// A page may be empty and yet not the last: the relay looks at so many rows a call.
export async function firstOf(load, path) {
  let found = await load(path);
  for (let tries = 0; !found.items.length && found.next && tries < 10; tries += 1) found = await load(found.next);
  return found;
}

// Rows that come page by page: the first at once, more at a press.
export class Pages {
  constructor(load, add) {
    this.load = load; // path -> {items, next}
    this.add = add;
    this.next = null;
    this.problem = problem();
    this.button = button(t("More"), doing(this.problem, () => this.more()));
    this.button.hidden = true;
    this.element = h("p.more", this.button, this.problem);
  }

  async start(path) {
    this.path = path;
    const { items, next } = await firstOf(this.load, path);
    if (this.path !== path) return; // asked anew meanwhile
    this.set(next);
    this.add(items, true);
  }

  async more() {
    const path = this.next;
    const { items, next } = await this.load(path);
    if (this.next !== path) return;
    this.set(next);
    this.add(items, false);
  }

  set(next) {
    this.next = next;
    this.button.hidden = next === null;
  }
}

// Times and sizes ------------------------------------------------------------------------------

// Made once: a list shows many, and making one takes longer than using it a hundred times.
const TIME = new Intl.DateTimeFormat(locale, { timeStyle: "medium" });
const BOTH = new Intl.DateTimeFormat(locale, { dateStyle: "short", timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short" });
const YEAR = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", year: "numeric" });
const WHOLE = new Intl.NumberFormat(locale);
const TENTHS = new Intl.NumberFormat(locale, { minimumFractionDigits: 1, maximumFractionDigits: 1 });

// Whom a message is to or from; no list shows the administrator what another owner sends.
export const whose = (address) => address ?? t("another owner's");

// What is shown as a message's subject: never nothing, for it is a link; `hidden` where it is another owner's.
export const titled = (subject, hidden) => (subject ?? null) === null ? hidden : subject.trim() || t("(no subject)");

export function when(instant) {
  if (!instant) return "";
  const date = new Date(instant);
  if (Number.isNaN(date.getTime())) return "";
  return (date.toDateString() === new Date().toDateString() ? TIME : BOTH).format(date);
}

// How long ago, in as few characters as a row has room for.
export function since(instant) {
  if (!instant) return "";
  const date = new Date(instant);
  const seconds = (clock.now() - date) / 1000;
  if (seconds < 60) return t("now");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return Number.isNaN(seconds) ? "" : (seconds > 300 * 86400 ? YEAR : DAY).format(date);
}

export function lasting(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.round(seconds / 3600)} h` : t("{0} days", Math.round(seconds / 86400));
}

export function bytes(count) {
  if (count === null || count === undefined) return "";
  if (count < 1000) return `${count} B`;
  if (count < 1e6) return `${tenths(count / 1000)} kB`;
  return `${tenths(count / 1e6)} MB`;
}

export const number = (count) => (count === null || count === undefined ? "?" : WHOLE.format(count));
export const tenths = (value) => TENTHS.format(value);
