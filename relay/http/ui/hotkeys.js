// What single keys do in the mail view, and the window that tells.

import { button, h, say } from "/ui/dom.js";

const KEYS = [
  ["j", "the next message"],
  ["k", "the message before"],
  ["Enter", "open it"],
  ["x", "choose it, or not"],
  ["u", "unread, or read"],
  ["#", "delete"],
  ["z", "undo"],
  ["/", "search"],
  ["g", "the first message"],
  ["Esc", "back to the list"],
  ["?", "this list"],
];

const WRITES = "input:not([type=checkbox]), textarea, select, [contenteditable]";

export function showKeys() {
  const dialog = h("dialog", { id: "keys-help", "aria-label": "Keys", onclose: () => dialog.remove() },
    h("h2", { text: "Keys" }),
    h("dl", {}, KEYS.map(([key, does]) => [h("dt", {}, h("kbd", { text: key })), h("dd", { text: does })]).flat()),
    button("Close", () => dialog.close()));
  document.body.append(dialog);
  dialog.showModal();
}

export function keysOf(mail, signal) {
  const step = (by) => {
    const { rows } = mail.list;
    const at = rows.at < 0 ? 0 : rows.at + by;
    if (at < 0 || at >= rows.items.length) return;
    if (mail.reading) location.hash = mail.list.hrefOf(rows.items[at]);
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
    const items = chosen();
    if (items.length) mail.remove(items);
    mail.list.rows.pickNone();
  };
  const unread = async () => {
    const items = chosen();
    if (!items.length) return;
    await mail.mark(items, items.some((item) => !item.is_read));
  };
  const acts = {
    j: () => step(1),
    k: () => step(-1),
    x: () => mail.list.rows.standing && mail.list.rows.pick(mail.list.rows.standing.id, !mail.list.rows.picked.has(mail.list.rows.standing.id)),
    u: () => unread().catch((error) => say(mail.list.trouble, error.message)),
    "#": remove,
    g: () => mail.list.rows.items.length && mail.list.rows.stand(0, true),
    "/": () => mail.list.field.focus(),
    Enter: () => mail.list.rows.standing && (location.hash = mail.list.hrefOf(mail.list.rows.standing)),
    Escape: () => mail.reading && (location.hash = mail.list.href()),
    z: () => mail.undoing?.(),
    "?": showKeys,
  };
  const sent = new Set(["x", "u", "#"]); // what does not go with a list of what was sent
  document.addEventListener("keydown", (pressed) => {
    const act = Object.hasOwn(acts, pressed.key) ? acts[pressed.key] : null;
    if (!act || pressed.ctrlKey || pressed.metaKey || pressed.altKey || pressed.isComposing) return;
    if (document.querySelector("dialog[open]") || pressed.target.closest(WRITES)) return;
    if (pressed.key === "Enter" && pressed.target.closest("a, button, summary, input, [tabindex='0']")) return;
    if (pressed.key !== "?" && !mail.list) return;
    if (mail.list?.at.key === "sent" && sent.has(pressed.key)) return;
    pressed.preventDefault();
    act();
  }, { signal });
}
