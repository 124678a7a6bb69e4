// Windows that ask: of the page itself, closed by Escape, gone when closed.

import { button, doing, filled, h, labelled, problem, say } from "./dom.js";
import { named, t } from "./strings.js";

// A window of one's own.
export function opened(tag, properties, ...children) {
  const dialog = h(tag, { onclose: () => dialog.remove(), ...properties }, ...children);
  document.body.append(dialog);
  dialog.showModal();
  dialog.scrollTop = 0; // what has the focus may stand below what is read first
  return dialog;
}

// What a refusal says of a field stands at the field, by the name that the form has for it, and the
// first of these fields has the focus.  Returns what is about none.
function faults(form, sentences) {
  let first = null;
  const others = [];
  for (const one of sentences) {
    const [, name, at, fault] = /^(\w+)(?:\[(\d+)\])?: (.+)$/s.exec(one) ?? [];
    const control = name && form.elements[name];
    const label = control?.labels?.[0];
    if (!label) {
      others.push(one);
      continue;
    }
    const given = control.value.trim().split(/[\s,;]+/); // of several addresses, the one that is meant
    const about = at && given[1] && given.every((address) => address.includes("@")) ? given[at] : label.firstChild.textContent.trim();
    const place = h("p.problem", { id: `fault-${name}`, role: "alert" });
    label.after(place);
    say(place, `${about}: ${fault.replace(/^(?:Input|String|List|Tuple|Value) should/, "must")}`); // a program's word for what was typed
    control.ariaInvalid = "true";
    control.setAttribute("aria-describedby", place.id);
    first ??= control;
  }
  first?.focus();
  return others;
}

function forgive(form) {
  for (const one of form.querySelectorAll("[id^=fault-]")) one.remove();
  for (const one of form.querySelectorAll("[aria-invalid]")) one.ariaInvalid = null;
}

// When a form is submitted: what is refused of a field stands at the field, all else in `trouble`.
export const submitting = (trouble, act) => doing(trouble, async (submitted) => {
  const form = submitted.target;
  forgive(form);
  try {
    await act(submitted);
  } catch (error) {
    const others = faults(form, error.sentences ?? []);
    if (others.length || !form.querySelector("[id^=fault-]")) throw others.length ? new Error(others.join(" ")) : error;
  }
});

const asks = (title, ...children) => opened("dialog.asks", { ariaLabel: title }, h("h2", title), ...children);

// `fields`: elements; `act(values, going)` is called with what was filled in, and the window closes
// when it has ended well; `keep`: what the other button says.  What takes long may say how far it is
// by `going.tell(text)`; then the button stops it, or Escape, which it sees by `going.over()`.  What
// cannot be taken back is `grave`.  What was typed of a `draft` is there when that is asked again, until
// it has ended well.
export const drafts = new Map(); // fields, by what they are of; gone with who typed them
export function asking({ title, says, fields = [], does, act, draft, grave = false, keep = t("Cancel") }) {
  fields = drafts.get(draft) ?? fields;
  if (draft) drafts.set(draft, fields);
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
    onsubmit: submitting(trouble, async () => {
      try {
        await act(filled(form), going);
        drafts.delete(draft);
        dialog.close();
      } finally {
        say(far, "");
        say(close, keep);
      }
    }),
  }, ...fields, h("p.bar", h("button.main", { class: grave ? "grave" : "" }, does), close), far, trouble);
  const dialog = asks(title, says ? h("p.small", says) : "", form);
}

// Say something that one has not looked at a place for.
export function tell(title, says) {
  const dialog = asks(title, h("p", { text: says, role: "status" }), button(t("Close"), () => dialog.close()));
}

// Command an actor, after a question.
export function commanding(name, verb, act) {
  const [title, says, does] = verb === "restart"
    ? [t("Restart {0}?", name), t("What it has in hand is finished first; what waits is kept."), t("Restart")]
    : [`${name}: ${named(verb)}?`, "", named(verb)];
  asking({ title, says, does, act });
}

export const field = (name, label, properties = {}) =>
  labelled(label, h(properties.rows ? "textarea" : "input", { name, required: true, autocomplete: "off", ...properties }));
