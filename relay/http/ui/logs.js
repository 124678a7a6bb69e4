// Logs: the structured log of this start, live, filtered by actor, level and text (a message's id).

import { ask, keepUp, linesIn, query } from "/ui/calls.js";
import { button, h, problem, say } from "/ui/dom.js";

export const title = "Logs";
export const scope = "admin";

const MOST = 1000; // lines on the page
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const KNOWN = new Set(["timestamp", "level", "event", "actor"]);

export function open(place, page) {
  const trouble = problem();
  const list = h("ol", { id: "lines", class: "lines", tabindex: "0", "aria-label": "Log lines, newest last" });
  const count = h("p", { class: "facts", id: "line-count" }); // not read out: it never rests
  const input = (name, text, placeholder) => h("label", { text: `${text} ` }, h("input", { name, placeholder, value: page.values.get(name) ?? "", autocapitalize: "none" }));
  const level = h("select", { name: "level" }, LEVELS.map((name) => h("option", { value: name, text: name })));
  level.value = page.values.get("level") ?? "info";
  const form = h("form", { id: "log-filter", onsubmit: (submitted) => submitted.preventDefault(), onchange: () => start() },
    input("actor", "Actor", "any"), h("label", { text: "Level " }, level), input("text", "Text or message id", "any"));
  const hold = (wanted) => {
    held = wanted;
    say(swap, held ? "go on" : "hold still");
    if (!held) show();
  };
  const swap = button("hold still", () => hold(!held));
  place.append(h("section", { "aria-label": "Log" }, form, h("p", {}, swap), count, trouble, list));

  let waiting = [];
  let held = false;
  let due = false;
  let following = null;

  // Once a frame, however many come: a burst of a hundred thousand lines costs what is shown of it.
  function show() {
    due = false;
    if (held) return;
    const fresh = waiting.slice(-MOST);
    waiting = [];
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(...fresh.map(lineOf));
    while (list.childElementCount > MOST) list.firstElementChild.remove();
    say(count, `${list.childElementCount} lines`);
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  function start() {
    following?.abort();
    following = new AbortController();
    const { signal } = following;
    const values = Object.fromEntries(new FormData(form));
    hold(false); // what is asked for now is to be seen
    const text = values.text.trim();
    keepUp(signal, async () => {
      const response = await ask(`/api/v1/logs${query({ actor: values.actor.trim(), level: values.level, follow: 1 })}`, { signal });
      list.replaceChildren(); // not before: in an outage the last lines are what one looks for
      waiting = [];
      say(trouble, "");
      say(count, "No line yet.");
      for await (const lines of linesIn(response)) {
        for (const line of lines) if (line && (!text || line.includes(text))) waiting.push(line);
        if (waiting.length > 10 * MOST) waiting = waiting.slice(-MOST);
        if (waiting.length && !due) {
          due = true;
          requestAnimationFrame(show);
        }
      }
    }, (said) => say(trouble, said));
  }
  page.signal.addEventListener("abort", () => following?.abort());
  start();
}

function lineOf(text) {
  let line;
  try {
    line = JSON.parse(text);
  } catch {
    return h("li", { text });
  }
  const rest = Object.entries(line).filter(([name]) => !KNOWN.has(name)).map(([name, value]) => `${name}=${typeof value === "string" ? value : JSON.stringify(value)}`);
  return h("li", { class: line.level }, h("time", { text: clockOf(line.timestamp), title: line.timestamp }), " ", h("b", { text: line.level }), " ", h("span", { class: "actor", text: line.actor }), " ", h("strong", { text: line.event }), " ", rest.join(" "));
}

// By the clock of who looks, as everywhere on the page; the log itself is in UTC.
function clockOf(stamp) {
  const date = new Date(stamp);
  if (Number.isNaN(date.getTime())) return "";
  const parts = [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0"));
  return `${parts.join(":")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}
