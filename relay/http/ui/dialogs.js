// Windows that ask: of the page itself, closed by Escape, gone when closed.

import { button, doing, filled, h, problem, say } from "/ui/dom.js";
import { t } from "/ui/strings.js";

// `fields`: elements; `act(values, going)` is called with what was filled in, and the window closes
// when it has ended well; `keep`: what the other button says.  What takes long may say how far it is
// by `going.tell(text)`; then the button stops it, or Escape, which it sees by `going.over()`.
export function asking({ title, says, fields, does, act, keep = t("Cancel") }) {
  const trouble = problem();
  const far = h("p.small");
  const close = button(keep, () => dialog.close());
  const going = {
    tell: (text) => {
      say(far, text);
      say(close, t("Stop"));
    },
    over: () => !dialog.open,
  };
  const form = h("form", {
    class: "asking",
    onsubmit: doing(trouble, async () => {
      try {
        await act(filled(form), going);
        dialog.close();
      } finally {
        say(far, "");
        say(close, keep);
      }
    }),
  }, ...fields, h("p.bar", {}, h("button.main", { text: does }), close), far, trouble);
  const dialog = h("dialog.asks", { ariaLabel: title, onclose: () => dialog.remove() }, h("h2", { text: title }), says ? h("p.small", { text: says }) : "", form);
  document.body.append(dialog);
  dialog.showModal();
}

export const field = (name, label, properties = {}) =>
  h("label", { text: `${label} ` }, h(properties.rows ? "textarea" : "input", { name, required: true, autocomplete: "off", ...properties }));
