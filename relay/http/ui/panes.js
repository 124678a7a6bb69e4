// Panes beside each other, with bars between them that can be dragged, or moved by the arrow keys.
//
// The widths are this browser's, and stay as they were left.

import { h } from "./dom.js";
import { recall, retain } from "./secrets.js";
import { t } from "./strings.js";

const KEPT = "relay.panes";
const STEP = 24; // px that an arrow key moves a bar
const BARS = [
  { name: "--rail", label: t("Width of the inboxes"), least: 180, most: 420, usual: 248 },
  { name: "--list", label: t("Width of the list"), least: 280, most: 900, usual: 480 },
];

const keep = (name, width) => retain(KEPT, { ...recall(KEPT), [name]: width });

// Put `panes` into `place`, a bar between each two.
export function divide(place, panes) {
  panes.forEach((pane, at) => {
    place.append(pane);
    if (at < panes.length - 1) place.append(bar(place, BARS[at]));
  });
}

function bar(place, { name, label, least, most, usual }) {
  let width = Number(recall(KEPT)?.[name]) || usual;
  const made = h("div.divider", { role: "separator", tabindex: "0", "aria-orientation": "vertical", ariaLabel: label, "aria-valuemin": least, "aria-valuemax": most });
  const set = (wanted) => {
    width = Math.round(Math.max(least, Math.min(most, wanted)));
    place.style.setProperty(name, `${width}px`);
    made.setAttribute("aria-valuenow", String(width));
  };
  set(width);
  made.addEventListener("pointerdown", (pressed) => {
    pressed.preventDefault();
    made.setPointerCapture(pressed.pointerId);
    const from = pressed.clientX - width;
    const moved = (to) => set(to.clientX - from);
    made.addEventListener("pointermove", moved);
    made.addEventListener("lostpointercapture", () => {
      made.removeEventListener("pointermove", moved);
      keep(name, width);
    }, { once: true });
  });
  made.addEventListener("dblclick", () => {
    set(usual);
    keep(name, width);
  });
  made.addEventListener("keydown", (pressed) => {
    const by = { ArrowLeft: -STEP, ArrowRight: STEP }[pressed.key];
    if (!by) return;
    pressed.preventDefault();
    set(width + by);
    keep(name, width);
  });
  return made;
}
