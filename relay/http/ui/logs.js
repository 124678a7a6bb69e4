// Logs: the structured log of this start, live.
//
// A press of a field asks for what has the same; of an id, for its whole story: every line with it,
// of every actor.  What is asked for stands in the address:
//   #/logs?actor=NAME&level=LEVEL&text=WORDS        a word may be FIELD=VALUE

import { ask, get, keepUp, linesIn, query } from "./calls.js";
import { asText, button, dotted, filled, h, input, labelled, narrowing, number, problem, say, section } from "./dom.js";
import { named, t } from "./strings.js";

export const title = t("Logs");
export const scope = "admin";

const MOST = 1000; // lines on the page
const KEPT = 20000; // that came while it was paused; the relay keeps no more either
const LEVELS = ["debug", "info", "warning", "error", "critical"];
const KNOWN = new Set(["timestamp", "level", "event", "actor"]);
const ID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/;
const WORD = /([\w.]+)=(?:"((?:[^"\\]|\\.)*)"|(\S*))|"([^"]*)"|(\S+)/g;

const spelt = (value) => (/^[^\s"]+$/.test(value) ? value : JSON.stringify(value));

// What says whether a line is meant by "words field=value …".
function selection(text) {
  const tests = [...text.matchAll(WORD)].map(([whole, field, quoted, plain, phrase, word]) => {
    if (field) {
      const wanted = quoted === undefined ? plain : JSON.parse(`"${quoted}"`);
      return (line) => field in line && asText(line[field]) === wanted;
    }
    const wanted = (phrase ?? word ?? whole).toLowerCase();
    return (line, said) => said.toLowerCase().includes(wanted);
  });
  return (line, said) => tests.every((test) => test(line, said));
}

export function open(place, page) {
  const trouble = problem();
  const list = h("ol.lines", { id: "lines", tabindex: "0", ariaLabel: t("Log lines, newest last"), onclick: (pressed) => press(pressed.target) });
  const count = h("p.facts", { id: "line-count" }); // not read out: it never rests
  const story = h("div", { id: "log-story", hidden: true });
  const level = h("select", { name: "level" }, LEVELS.map((name) => h("option", { value: name, text: name, lang: "en" })));
  const form = narrowing("log-filter", () => start(),
    labelled(t("Actor"), input("actor", { placeholder: t("any"), spellcheck: false, list: "actors" })), labelled(t("Level"), level), labelled(t("Text or message id"), input("text", { type: "search", placeholder: t("words, or event=relay.ready"), spellcheck: false })));
  const actors = h("datalist", { id: "actors" });
  const swap = button(t("Pause"), () => hold(!held), { id: "log-hold" });
  place.append(section(t("Log"), form, actors, h("p.bar", swap, h("span.small", t("A press of a field narrows to it; of an id, it tells its story."))), story, count, trouble, list));

  let waiting = [];
  let lost = 0;
  let held = false;
  let due = false;
  let anew = false; // another search is told
  let told = new Set(); // of the lines of this one, what the relay may tell again, with a new stream
  let following = null;
  let known = null; // the names of actors

  function hold(wanted) {
    held = wanted;
    say(swap, held ? t("Resume") : t("Pause"));
    if (!held) show();
  }

  // Once a frame, however many come: a burst of a hundred thousand lines costs what is shown of it.
  // What came while the page was held still is shown whole.
  function show() {
    due = false;
    if (held) {
      say(swap, t("Resume ({0} more)", number(waiting.length)));
      return;
    }
    const fresh = waiting;
    waiting = [];
    if (anew) list.replaceChildren();
    anew = false;
    const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
    list.append(...fresh.map(lineOf));
    const most = Math.max(MOST, fresh.length);
    while (list.childElementCount > most) list.firstElementChild.remove();
    const actor = form.elements.actor.value.trim();
    if (!list.childElementCount) say(count, actor && known && !known.has(actor) ? t("No actor is called {0}.", actor) : t("No line yet."));
    else say(count, dotted([list.childElementCount === 1 ? t("1 line") : t("{0} lines", number(list.childElementCount)), lost ? t("{0} older ones were dropped", number(lost)) : ""]));
    lost = 0;
    if (atEnd) list.scrollTop = list.scrollHeight;
  }

  function start() {
    following?.abort();
    following = new AbortController();
    const { signal } = following;
    const values = filled(form);
    const [actor, text] = [values.actor.trim(), values.text.trim()];
    history.replaceState(null, "", `#/logs${query({ actor, level: values.level === "info" ? "" : values.level, text })}`);
    waiting = [];
    told = new Set();
    anew = true;
    lost = 0;
    held = false; // what is asked for now is to be seen
    say(swap, t("Pause"));
    tell(ID.test(text) ? text : null);
    const meant = selection(text);
    keepUp(signal, async () => {
      const response = await ask(`logs${query({ actor, level: values.level, follow: 1 })}`, { signal });
      say(trouble, "");
      show();
      for await (const lines of linesIn(response)) {
        for (const said of lines) {
          const line = said && !told.has(said) && parsed(said);
          if (!line || !meant(line, said)) continue;
          waiting.push(line);
          if (line.timestamp) told.add(said);
          if (told.size > KEPT) told.delete(told.values().next().value);
        }
        const most = held ? KEPT : MOST;
        if (waiting.length > most) lost += waiting.splice(0, waiting.length - most).length;
        if (waiting.length && !due) {
          due = true;
          requestAnimationFrame(show);
        }
      }
    }, (said) => say(trouble, said));
  }

  // Whose story it is, and where else it is told.
  function tell(id) {
    story.hidden = !id;
    if (!id) return;
    story.replaceChildren(t("Lines with {0} that this node wrote since its start.", id), " ", button(t("All lines"), () => want({ text: "", level: "info" })));
    const { signal } = following;
    // No message of the queue has none.
    Promise.all(["", "/events"].map((what) => get(`outbound/${id}${what}`, { signal }))).then(([message, events]) => story.append(
      h("p", t("The database keeps of it:"), " ", h("a", { href: `#/queue/${id}`, text: t("Its deliveries, attempt by attempt") })),
      h("ol.lines", { id: "log-kept" }, [
        { timestamp: message.created_at, event: named("queued") },
        ...events.map(({ at, phase, attempt, code, peer, reply, error }) => ({ timestamp: at, level: code < 400 && code ? "info" : "warning", actor: t("Attempt {0}", attempt), event: phase, ...(code && { code }), ...(peer && { peer }), ...((error ?? reply) && { said: error ?? reply }) })),
        ...(message.status === "queued" ? [] : [{ timestamp: message.sent_at ?? events.at(-1)?.at, event: named(message.status) }]),
      ].map(lineOf)))).catch(() => {});
  }

  function want(values) {
    for (const [name, value] of Object.entries(values)) form.elements[name].value = value;
    start();
  }

  function press(target) {
    const { field, value } = target.dataset;
    if (!field || !getSelection().isCollapsed) return;
    if (ID.test(value)) want({ actor: "", level: "debug", text: value });
    else if (field === "actor" || field === "level") want({ [field]: value });
    else {
      const word = `${field}=${spelt(value)}`;
      const { text } = form.elements;
      if (!` ${text.value} `.includes(` ${word} `)) want({ text: `${text.value} ${word}`.trim() });
    }
  }

  function move({ values }) {
    for (const name of ["actor", "text"]) form.elements[name].value = values.get(name) ?? "";
    // A story is told whole, by links from elsewhere, too.
    level.value = values.get("level") ?? (ID.test(values.get("text") ?? "") ? "debug" : "info");
    start();
  }
  page.signal.addEventListener("abort", () => following?.abort());
  page.get("supervision").then((root) => {
    known = new Set(namesIn(root));
    actors.replaceChildren(...[...known].map((value) => h("option", { value })));
    if (!list.childElementCount) show();
  }, () => {}); // then one types the names unaided
  move(page);
  return move;
}

const namesIn = ({ name, children }) => [name, ...children.flatMap(namesIn)];

function parsed(said) {
  try {
    return JSON.parse(said);
  } catch {
    return { event: said };
  }
}

function lineOf(line) {
  const part = (tag, field, value, text = value) => {
    const made = h(tag, { class: `field ${field}`, text });
    made.dataset.field = field;
    made.dataset.value = value;
    return made;
  };
  const rest = Object.entries(line).filter(([name, value]) => !KNOWN.has(name) && !(name === "incarnation" && value === 1)).flatMap(([name, value]) =>
    Array.isArray(value) && value.some((one) => ID.test(one))
      ? [` ${name}=`, ...value.flatMap((one) => [part("span", name, asText(one)), " "])]
      : String(value).includes("\n") ? [` ${name}=`, h("pre", value)] // a trace
      : [" ", part("span", name, asText(value), `${name}=${asText(value)}`)]);
  return h("li", { class: line.level, lang: "en" }, h("time", { text: clockOf(line.timestamp), title: line.timestamp }), " ", part("b", "level", line.level ?? ""), " ", part("span", "actor", line.actor ?? ""), " ", part("strong", "event", line.event), ...rest);
}

// By the clock of who looks, as everywhere on the page; the log itself is in UTC.
function clockOf(stamp) {
  const date = new Date(stamp);
  if (Number.isNaN(date.getTime())) return "";
  const parts = [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0"));
  return `${parts.join(":")}.${String(date.getMilliseconds()).padStart(3, "0")}`;
}
