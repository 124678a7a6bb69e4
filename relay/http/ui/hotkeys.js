// What single keys do in the mail view, a g with a letter in every view, and the window that tells.

import { opened } from "./dialogs.js";
import { button, h, say } from "./dom.js";
import { t } from "./strings.js";

const KEYS = [
  ["j", t("the next message")],
  ["k", t("the message before")],
  ["Enter", t("open it")],
  ["x", t("choose it, or not; X: with all from the last one")],
  ["u", t("unread, or read")],
  ["r", t("reply")],
  ["f", t("forward, as it came")],
  ["#", t("delete")],
  ["z", t("undo")],
  ["/", t("search")],
  ["g", t("the first message")],
  ["g …", t("to a view: i mail, q queue, n now, l logs, k API keys, s settings, a accounts, d devices, o domains")],
  ["e", t("read")],
  ["i", t("load remote images, once")],
  ["Ctrl K, ⌘ K", t("find or do anything")],
  ["Esc", t("back: to the list, to no choice, to no search")],
  ["?", t("this list")],
];

const VIEWS = { a: "accounts", d: "devices", i: "mail", k: "keys", l: "logs", n: "now", o: "domains", q: "queue", s: "settings" };
export const keysTo = (view) => Object.entries(VIEWS).filter(([, one]) => one === view).map(([letter]) => `g ${letter}`)[0];
const LETTER = 1000; // ms that a g waits for its letter
const WRITES = "input:not([type=checkbox]),textarea,select,[contenteditable]";

export function showKeys() {
  const dialog = opened("dialog", { id: "keys-help", ariaLabel: t("Keys") },
    h("h2", t("Keys")),
    h("dl", KEYS.map(([key, does]) => [h("dt", h("kbd", key)), h("dd", does)]).flat()),
    button(t("Close"), () => dialog.close()));
}

// Also of what is pressed in the frame of a message, whose elements may be named after methods.
const within = (element, selector) => Element.prototype.closest.call(element, selector);
const plain = (pressed) => !(pressed.ctrlKey || pressed.metaKey || pressed.altKey || pressed.isComposing || document.querySelector("dialog[open]") || within(pressed.target, WRITES));

let [waits, alone] = [null, null]; // the timer of a g that was pressed, and what one does without a letter

// Whether a key is a g, or the letter of the g before it, which leads to a view that is there.
function leads(pressed) {
  const after = waits !== null;
  clearTimeout(waits);
  waits = null;
  const link = after && plain(pressed) && document.querySelector(`#views [data-view=${VIEWS[pressed.key]}]`);
  if (link) link.click();
  else if (after) alone?.();
  if (after || pressed.key !== "g" || !plain(pressed)) return Boolean(link) || (after && pressed.key === "g");
  waits = setTimeout(() => {
    waits = null;
    alone?.();
  }, LETTER);
  return true;
}

// In every view, before what a view does with them itself.
addEventListener("keydown", (pressed) => {
  const act = { "?": showKeys, "/": () => document.querySelector("main input")?.focus() }[pressed.key];
  if (leads(pressed)) pressed.stopImmediatePropagation();
  else if (act && document.body.dataset.view !== "mail" && plain(pressed)) act();
  else return;
  pressed.preventDefault();
}, true);

export function keysOf(mail, signal) {
  const step = (by) => {
    const { rows } = mail.list;
    const near = rows.known.has(mail.reading); // if not, nobody knows what is next to what is read
    if (mail.reading && !near && rows.at < 0) return;
    const at = rows.at < 0 ? 0 : rows.at + by;
    if (at < 0 || at >= rows.items.length) return;
    if (near) location.hash = mail.list.hrefOf(rows.items[at]);
    else rows.stand(at, true);
  };
  const chosen = () => {
    const { list } = mail;
    const picked = list.chosenItems();
    if (picked.length) return picked;
    const item = list.rows.known.get(mail.reading) ?? list.rows.standing;
    return item ? [item] : [];
  };
  const remove = () => {
    if (mail.list.all) return mail.sweep(mail.list);
    const items = chosen();
    if (items.length) mail.remove(items);
    mail.list.rows.pickNone();
  };
  // As read; without `isRead`, as unread where all are read.
  const mark = (isRead) => {
    const { list } = mail;
    const items = chosen().filter((item) => !isRead || !item.is_read);
    if (!list.all && !items.length) return;
    mail.mark(list.all ? list : items, isRead ?? items.some((item) => !item.is_read)).catch((error) => say(list.trouble, error.message));
  };
  const pick = (range) => {
    const { rows } = mail.list;
    const { id } = rows.standing ?? {};
    if (id) rows.pick(id, range || !rows.picked.has(id), range);
  };
  const back = () => {
    const { list } = mail;
    if (mail.reading) location.hash = list.href();
    else if (list.rows.picked.size) list.rows.pickNone();
    else if (list.q) {
      list.field.value = "";
      list.typed(true);
    }
  };
  const acts = {
    e: () => mark(true),
    f: () => mail.reader.press("forward"),
    r: () => mail.reader.press("reply"),
    i: () => document.querySelector("#remote-images:not([hidden]) button")?.click(),
    j: () => step(1),
    k: () => step(-1),
    x: () => pick(false),
    X: () => pick(true),
    u: () => mark(),
    "#": remove,
    "/": () => mail.list.field.focus(),
    Enter: () => mail.list.rows.standing && (location.hash = mail.list.hrefOf(mail.list.rows.standing)),
    Escape: back,
    z: () => mail.undoing?.(),
    "?": showKeys,
  };
  const sent = new Set(["x", "X", "u", "e", "#"]); // what does not go with a list of what was sent
  alone = () => mail.list?.rows.items.length && mail.list.rows.stand(0, true);
  signal.addEventListener("abort", () => (alone = null));
  mail.press = (pressed) => {
    if (leads(pressed)) return pressed.preventDefault();
    if (pressed.key.toLowerCase() === "k" && (pressed.ctrlKey || pressed.metaKey) && !pressed.defaultPrevented && pressed.view !== self) {
      pressed.preventDefault();
      mail.page.find(); // pressed in the frame of a message: the page does not hear it
      return;
    }
    const act = Object.hasOwn(acts, pressed.key) ? acts[pressed.key] : null;
    if (!act || !plain(pressed)) return;
    if (pressed.key === "Enter" && within(pressed.target, "a,button,summary,input,[tabindex='0']")) return;
    if (pressed.key !== "?" && !mail.list) return;
    if (mail.list?.at.key === "sent" && sent.has(pressed.key)) return;
    pressed.preventDefault();
    act();
  };
  document.addEventListener("keydown", mail.press, { signal });
}
