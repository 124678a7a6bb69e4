// Queue: outbound mail by state, the list of one, and a message's whole story, side by side.
//
// Each state has an address, so that reload, back and a shared link lead to it:
//   #/queue                  all                         #/queue/all[/ID]
//   #/queue/STATE[/ID]       what is in a state          #/queue/failures[/ID]  what failed, by error
//   #/queue/overview         the queue as a whole, in place of a list
//   #/queue/ID               a message, as links from elsewhere say it
// with ?recipient=&domain=&tag=&priority= for those of a state that are meant.  Rows are chosen by their
// boxes, or by x where the keyboard is, for what may be done with them.

import { clock, part, query, Refused, send } from "./calls.js";
import { arrange, button, doing, dotted, fill, filled, h, input, keepFocus, labelled, lasting, narrowing, number, Pages, problem, say, section, since, Table, titled, when, whose } from "./dom.js";
import { asking, submitting } from "./dialogs.js";
import { makeFailures, messages } from "./failures.js";
import { inTerminal } from "./hello.js";
import { divide } from "./panes.js";
import { Plots } from "./plot.js";
import { places } from "./secrets.js";
import { ACTS as ACTS_OF_ONE, actsOf, heldBack, showStory } from "./story.js";
import { inWords, learn, named, t } from "./strings.js";

export const title = t("Queue");
export const scope = "send";

const LISTS = {
  all: t("All"), queued: t("Queued"), processing: t("Being delivered"), held: t("Held"), sent: t("Sent"), failed: t("Failed"), bounced: t("Bounced"), cancelled: t("Cancelled"),
  failures: t("Failures by error"),
};
const STATES = Object.keys(LISTS).filter((key) => key !== "failures");
// What may be done with all of a list, as far as it may be done with each.
const ACTS = { ...ACTS_OF_ONE, all: ACTS_OF_ONE.deferred, queued: ACTS_OF_ONE.deferred };
const OF_ALL = { retry: t("retry all"), hold: t("hold all"), cancel: t("cancel all") };
// The same, once it is known with how many it may be done; and with which.
const OF_SOME = {
  retry: [(count) => t("retry {0}", count), t("What is deferred, held, failed or bounced")],
  hold: [(count) => t("hold {0}", count), t("What is queued")],
  cancel: [(count) => t("cancel {0}", count), t("What is queued or held")],
};
const SAYS = {
  retry: () => t("They are tried at once, with a fresh set of attempts."),
  hold: () => t("They are set aside until somebody retries them."),
  cancel: () => t("They will not be sent. This cannot be undone."),
};
const FAILURES = 10000; // ms between two looks at the groups: they count thousands
const EVERY = 2000; // ms
const PAGE = 50; // rows

export function open(place, page) {
  const view = new Queue(page);
  place.append(view.element);
  view.move(page);
  page.every(EVERY, () => view.look(), view.outage);
  return (at) => view.move(at);
}

// With all that a list would show, however long it is: how many that are is asked first.  `about`:
// what is meant, in words; `done(text)`: what came of it.
async function actOnAll({ get }, verb, wanted, about, done) {
  const path = "outbound/matching";
  const { [verb]: count } = await get(`${path}${query(wanted)}`);
  if (!count) throw new Error(t("There is none with which that may be done."));
  really(verb, count, `${dotted(about)}. `, async () => (await send("POST", `${path}/${verb}${query(wanted)}`)).count, done);
}

// `act()` returns how many it changed.
function really(verb, count, about, act, done) {
  const does = { retry: t("Retry {0}", messages(count)), hold: t("Hold {0}", messages(count)), cancel: t("Cancel {0}", messages(count)) }[verb];
  asking({ title: `${does}?`, says: about + SAYS[verb](), does, grave: verb === "cancel", keep: t("Change nothing"), act: async () => done(t("{0} changed.", messages(await act()))) });
}

// Deferred mail of a filter (a destination, a route …), or all of it; as above.
async function flush({ get }, wanted, done) {
  const path = `queue/flush${query(wanted)}`;
  const { count } = await get(path);
  if (!count) return done(t("No deferred mail is meant."));
  asking({ title: t("Try {0} now?", messages(count)), says: [...Object.values(wanted), t("Deferred mail becomes due, and pauses of routes and destinations end.")].filter(Boolean).join(". "), does: t("Try now"),
    act: async () => done(t("{0} due now.", messages((await send("POST", path)).count))) });
}

const turn = (verb) => send("POST", `queue/${verb}`);
const pauseAll = (act) => asking({ title: t("Pause all deliveries?"), says: t("On every node, until somebody resumes them; what is under way ends."), does: t("Pause"), act });

// For the palette, whichever view is open; `page`: {may, get}.
export const acts = (page) => [
  ...["failed", "bounced"].map((status) => ({ title: `${OF_ALL.retry}: ${LISTS[status]}`, also: `retry ${status}`, act: (tell) => actOnAll(page, "retry", { status }, [LISTS[status]], tell) })),
  ...(page.may("admin") ? [
    { title: t("Try all deferred mail now"), also: ["flush", "retry"].join(" "), act: (tell) => flush(page, {}, tell) },
    { title: t("Pause all deliveries"), also: "pause", act: () => pauseAll(() => turn("pause")) },
    { title: t("Resume all deliveries"), also: "resume", act: async (tell) => tell((await turn("resume")).paused ? t("Paused") : t("Deliveries go on.")) },
  ] : []),
];

class Queue {
  constructor(page) {
    this.page = page;
    this.key = null; // of the list
    this.tail = ""; // of its address: the filter
    this.shown = null; // the message that is told of
    this.rows = new Map();
    this.picked = new Set(); // ids of rows that are chosen
    this.trouble = problem(); // of a command
    this.outage = problem(); // of a look
    this.rail = makeRail(page);
    this.failures = makeFailures(page, () => this.rail.refresh().catch(() => {})); // the next look tells
    this.heading = h("h2", { tabindex: "-1" });
    this.list = h("ul", { "aria-labelledby": "queue-heading" });
    this.heading.id = "queue-heading";
    this.none = h("p.none", { hidden: true });
    this.first = inTerminal("queue");
    this.pages = new Pages(page.list, (items, fresh) => this.show(items, fresh));
    this.filter = narrowing("filter", () => this.narrow(),
      input("recipient", { placeholder: t("an address"), ariaLabel: t("Recipient") }),
      input("domain", { placeholder: t("a domain"), ariaLabel: t("Destination") }),
      input("tag", { placeholder: t("a tag"), ariaLabel: t("Tag") }),
      h("select", { name: "priority", ariaLabel: t("Priority") }, h("option", { value: "", text: t("any priority") }), ["high", "normal", "bulk"].map((value) => h("option", { value, text: named(value) }))));
    this.done = h("p.small", { role: "status" });
    this.acts = h("div.bar", { id: "acts", role: "group", ariaLabel: t("With all of the list") });
    this.scroller = h("div.scroller", { id: "outbound", tabindex: "0", role: "region", ariaLabel: t("Messages, newest first") }, this.failures.element, this.list, this.none, this.first, this.pages.element);
    this.chosen = h("div.chosen", { role: "group", ariaLabel: t("Chosen messages"), hidden: true });
    const middle = h("section.middle", { ariaLabel: t("Messages") },
      h("div.top", h("div.bar", h("a.back", { href: "#/queue", text: t("‹ States") }), this.heading, h("span.space"), this.acts), this.filter, this.done, this.trouble, this.outage),
      this.scroller, this.chosen);
    this.story = h("article", { id: "story", "aria-labelledby": "story-title", hidden: true });
    this.overview = h("div.overview", h("a.back", { href: "#/queue", text: t("‹ States") }),
      makeState(page), makeSuppressions(page));
    const reader = h("section.reader", { ariaLabel: t("The story") }, this.story, this.overview);
    addEventListener("keydown", (pressed) => this.press(pressed), { signal: page.signal });
    addEventListener("pagehide", () => places.keep(this.href(), { top: this.scroller.scrollTop, far: this.rows.size }), { signal: page.signal });
    this.element = h("div.mail.queue");
    divide(this.element, [this.rail.element, middle, reader]);
  }

  // j and k go through the list, x chooses; Enter opens, as it opens any link.
  press({ key, target, ctrlKey, metaKey, altKey }) {
    const by = { j: 1, k: -1 }[key];
    if (ctrlKey || metaKey || altKey || target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
    if (key === "x") (target.closest(".row") ?? this.list.querySelector(".row.open"))?.querySelector("input").click();
    if (!by) return;
    const links = [...this.scroller.querySelectorAll("a.subject")].filter((link) => link.checkVisibility());
    const at = links.findIndex((link) => link === document.activeElement);
    (links[(at < 0 ? links.findIndex((link) => link.ariaCurrent) : at) + by] ?? links[by < 0 ? 0 : links.length - 1])?.focus();
  }

  // What the filter says stands in the address, and in those of what it leads to.
  filtered() {
    this.tail = query(filled(this.filter));
    this.rail.narrow(this.tail);
  }

  narrow() {
    this.filtered();
    this.counted = 0;
    history.replaceState(null, "", this.href(this.shown));
    this.refresh();
  }

  href(id) {
    return `#/queue/${this.key}${id ? `/${id}` : ""}${this.tail}`;
  }

  move({ parts: [name, id], values }) {
    if (name && name !== "overview" && !Object.hasOwn(LISTS, name)) [name, id] = [undefined, name];
    const key = Object.hasOwn(LISTS, name ?? "") ? name : (name || id) && this.key ? this.key : "all";
    const before = this.tail;
    if (STATES.includes(name)) {
      for (const one of this.filter.elements) one.value = values.get(one.name) ?? "";
      this.filtered();
    }
    if (key !== this.key || before !== this.tail) {
      this.key = key;
      this.element.dataset.state = key;
      this.rows.clear();
      this.pickNone();
      this.list.replaceChildren();
      this.none.hidden = key === "failures";
      say(this.none, t("Loading…"));
      this.first.hidden = true;
      this.scroller.scrollTop = 0;
      this.failures.element.hidden = key !== "failures";
      this.filter.hidden = this.list.hidden = this.pages.element.hidden = key === "failures";
      say(this.heading, LISTS[key]);
      say(this.done, "");
      this.acts.hidden = true; // until there is something
      this.counted = 0;
      this.acts.replaceChildren(...(ACTS[key] ?? []).map((verb) => button(OF_ALL[verb], doing(this.trouble, () => this.actOnAll(verb)), { "data-verb": verb, title: OF_SOME[verb][1], hidden: true })),
        ...(key === "queued" && this.page.may("admin") ? [button(t("try deferred now"), doing(this.trouble, () => flush(this.page, filled(this.filter), (text) => this.did(text))))] : []));
      this.refresh();
    }
    const whole = name === "overview";
    this.element.dataset.pane = id ? "reader" : whole ? name : name ? "list" : "rail";
    this.rail.mark(whole ? name : key);
    const fresh = (id ?? null) !== this.shown;
    this.shown = id ?? null;
    this.story.hidden = !id;
    this.overview.hidden = !whole;
    this.mark();
    if (!fresh) return;
    this.story.replaceChildren();
    say(this.trouble, "");
    if (id) {
      this.tell()
        .then(() => id === this.shown && this.story.querySelector("h2")?.focus({ preventScroll: true }))
        .catch((error) => {
          if (this.page.signal.aborted || id !== this.shown) return;
          this.story.hidden = true;
          say(this.trouble, error.message);
          this.element.dataset.pane = "list";
        });
    }
  }

  async tell() {
    const id = this.shown;
    await learn("queue");
    return showStory(this.story, this.page, id, { wanted: () => this.shown === id, refresh: () => this.refresh(), back: this.href() });
  }

  get wanted() {
    return { ...filled(this.filter), status: this.key === "all" ? "" : this.key };
  }

  get path() {
    return `outbound${query({ ...this.wanted, limit: PAGE })}`;
  }

  actOnAll(verb) {
    const { recipient, domain, tag, priority } = this.wanted;
    return actOnAll(this.page, verb, this.wanted, [LISTS[this.key], recipient, domain, tag, priority && named(priority)], (text) => this.did(text));
  }

  pick(id, wanted) {
    this.picked[wanted ? "add" : "delete"](id);
    this.showPicked();
  }

  pickNone() {
    this.picked.clear();
    this.showPicked();
  }

  // With how many of the chosen each may be done, as they are now.
  showPicked() {
    for (const id of this.picked) if (!this.rows.has(id)) this.picked.delete(id);
    for (const [id, row] of this.rows) {
      row.classList.toggle("picked", this.picked.has(id));
      row.querySelector("input").checked = this.picked.has(id);
    }
    const items = [...this.picked].map((id) => this.rows.get(id).known);
    this.chosen.hidden = !items.length;
    const may = Object.keys(OF_SOME).map((verb) => [verb, items.filter((one) => actsOf(one).includes(verb))]).filter(([, some]) => some.length);
    const told = JSON.stringify([items.length, may.map(([verb, some]) => [verb, some.length])]);
    if (this.chosen.dataset.told === told) return; // what has the focus keeps it
    this.chosen.dataset.told = told;
    keepFocus(this.chosen, () => this.chosen.replaceChildren(h("span", t("{0} chosen", number(items.length))),
      ...may.map(([verb, some]) => button(OF_SOME[verb][0](number(some.length)), () => this.actOnChosen(verb), { title: OF_SOME[verb][1] })),
      button(t("None"), () => this.pickNone())), () => this.heading);
  }

  // One by one: what was changed meanwhile, by whomever, is passed over.
  actOnChosen(verb) {
    const ids = [...this.picked].filter((id) => actsOf(this.rows.get(id).known).includes(verb));
    really(verb, ids.length, "", async () => {
      let changed = 0;
      for (const id of ids) {
        try {
          await send("POST", `outbound/${part(id)}/${verb}`);
          changed += 1;
        } catch (error) {
          if (!(error instanceof Refused)) throw error;
        }
      }
      return changed;
    }, (text) => {
      this.pickNone();
      return this.did(text);
    });
  }

  // Say with how many of the list each may be done.
  async count() {
    const { path } = this;
    const buttons = [...this.acts.querySelectorAll("[data-verb]")];
    if (!buttons.length || Date.now() - this.counted < FAILURES) return;
    this.counted = Date.now();
    const found = await this.page.get(`outbound/matching${query(this.wanted)}`).catch(() => null);
    if (path !== this.path) return;
    for (const one of buttons) {
      const { verb } = one.dataset;
      one.hidden = found && !found[verb];
      say(one, found ? OF_SOME[verb][0](number(found[verb])) : OF_ALL[verb]); // a press counts anew
    }
  }

  did(text) {
    this.counted = 0;
    say(this.done, text);
    return this.refresh();
  }

  async load() {
    await learn("queue");
    this.due ??= places.take(this.href()); // where a reload left it
    if (this.key === "failures") {
      this.looked = Date.now();
      await this.failures.refresh();
    } else await Promise.all([this.pages.start(this.path), this.count()]);
    const { due } = this;
    this.due = {}; // it is there, or was left on the way
    if (!due?.top) return;
    const { path } = this;
    while (this.rows.size < due.far && this.pages.next && path === this.path) await this.pages.more();
    if (path === this.path) this.scroller.scrollTop = due.top;
  }

  refresh() {
    return this.load().then(() => say(this.outage, ""), (error) => this.page.signal.aborted || say(this.outage, error.message));
  }

  async look() {
    // Rows that came by "More" are left alone: a list that jumps cannot be read.
    if (this.key === "failures" ? Date.now() - this.looked > FAILURES : this.rows.size <= PAGE) await this.load();
    if (!this.story.hidden && this.story.childElementCount) await this.tell(); // the first telling is `move`'s
  }

  show(items, fresh) {
    if (this.key === "failures") return; // asked for before
    const still = fresh && this.scroller.scrollTop > 0; // somebody reads further down: nothing moves
    const wanted = [];
    for (const one of items) {
      const known = this.rows.get(one.id);
      if (still && !known) continue;
      const row = known ?? makeRow(one, (wanted) => this.pick(one.id, wanted));
      this.rows.set(one.id, row);
      fillRow(row, one, this.href(one.id));
      wanted.push(row);
    }
    if (!fresh) this.list.append(...wanted);
    else if (!still) {
      const ids = new Set(items.map((one) => one.id));
      for (const id of [...this.rows.keys()]) if (!ids.has(id)) this.rows.delete(id);
      keepFocus(this.list, () => arrange(this.list, wanted), () => this.heading);
    }
    this.showPicked();
    this.none.hidden = this.rows.size > 0;
    this.acts.hidden = !this.rows.size;
    this.first.hidden = this.rows.size > 0 || this.key !== "all" || this.tail !== "";
    say(this.none, this.key === "all" ? t("No message.") : t("No message is {0}.", named(this.key)));
    this.mark();
  }

  mark() {
    for (const [id, row] of this.rows) {
      row.classList.toggle("open", id === this.shown);
      row.querySelector("a").ariaCurrent = id === this.shown ? "true" : null;
    }
  }
}

const makeRow = (one, pick) => h("li.row",
  h("label.pick", h("input", { type: "checkbox", onclick: (pressed) => pick(pressed.target.checked) })),
  h("span.state"), h("span.from", { dir: "auto" }),
  h("span.what", h("a.subject", { dir: "auto" }), h("span.snippet")),
  h("time", { dateTime: one.created_at, title: when(one.created_at) }));

function fillRow(row, one, href) {
  const [box, state, from, what, time] = row.children;
  row.known = one;
  const [subject, snippet] = what.children;
  state.className = `state status ${one.status}`;
  say(state, one.status === "processing" ? t("delivering") : named(one.status));
  say(from, from.title = whose(one.recipient));
  say(subject, what.title = titled(one.subject, one.id));
  box.firstChild.ariaLabel = t("Select {0}", what.title);
  say(snippet, dotted([one.error && inWords(one.error), one.status === "queued" && one.attempts && Date.parse(one.next_retry_at) > clock.now() ? `${t("next")} ${when(one.next_retry_at)}` : ""]));
  snippet.title = one.error ?? "";
  if (subject.getAttribute("href") !== href) subject.setAttribute("href", href);
  say(time, since(one.created_at));
}

const nameOf = (page) => (page.may("admin") ? t("The whole queue") : t("Your queue"));

// The states, with how many are in each

function makeRail(page) {
  const links = new Map();
  let marked;
  const entry = (key, text) => {
    const link = h("a", { href: `#/queue/${key}`, "data-key": key }, h("span", { text }), h("span.count"));
    links.set(key, link);
    return h("li", link);
  };
  const states = h("ul", { id: "states", ariaLabel: t("States") }, STATES.map((key) => entry(key, LISTS[key])));
  const trouble = problem();
  const body = h("div.scroller", states, h("ul", entry("failures", LISTS.failures), entry("overview", nameOf(page))));
  const element = h("section.rail", { ariaLabel: t("States of the queue") }, body);
  // How many its list shows; "+": more than are counted.
  const tally = async () => {
    const found = await page.get("outbound/counts");
    found.failures = found.failed + found.bounced;
    if (["failed", "bounced"].some((key) => found.more.includes(key))) found.more.push("failures");
    for (const [key, link] of links) say(link.querySelector(".count"), found[key] ? `${number(found[key])}${found.more.includes(key) ? "+" : ""}` : "");
  };
  let refresh = tally;
  if (page.may("admin")) {
    const paused = h("span.held");
    const swapped = async () => show(await turn(swap.dataset.verb));
    const swap = button(t("pause all"), doing(trouble, () => swap.dataset.verb === "resume" ? swapped() : pauseAll(swapped)), { hidden: true });
    const show = (queue) => {
      say(paused, queue.paused ? t("Paused") : "");
      if (swap.hidden) {
        swap.hidden = false; // it is known which of both
        mark(marked); // there is less room
      }
      swap.dataset.verb = queue.paused ? "resume" : "pause";
      say(swap, queue.paused ? t("resume all") : t("pause all"));
    };
    element.append(h("div.foot.bar", swap, paused, trouble));
    refresh = async () => show((await Promise.all([page.get("queue"), tally()]))[0]);
  }
  page.every(EVERY, refresh); // that it fails says the look at the list
  const mark = (key) => {
    marked = key;
    for (const [name, link] of links) link.ariaCurrent = name === key ? "page" : null;
    links.get(key).scrollIntoView({ block: "nearest", inline: "center" }); // on a phone they are a strip
  };
  const narrow = (tail) => STATES.forEach((key) => links.get(key).setAttribute("href", `#/queue/${key}${tail}`));
  return { element, mark, narrow, refresh };
}

// The last day, and the whole queue: of all relays for the administrator, else of one's own mail, which
// nobody counts as it waits

function makeState(page) {
  const all = page.may("admin");
  const plots = new Plots(["sent", "errors", ...(all ? ["waiting", "age"] : [])], 24);
  const outage = problem(); // of a look
  let looked = 0; // ms: at the destinations, which counts thousands
  const counts = h("p.facts", { id: "queue-state" });
  const table = new Table(t("Destinations: unfinished, ended within the hour, held back by this node"), { destination: t("Destination"), unfinished: t("Unfinished"), went: t("Sent"), lost: t("Failed"), returned: t("Bounced") }, { none: t("No mail."), id: "destinations" });
  const show = (queue) => {
    plots.each.waiting.push(queue.queued);
    plots.each.age.push(queue.oldest_due_seconds ?? 0);
    const each = (counted) => Object.entries(counted).map(([name, count]) => `${number(count)} ${named(name)}`).join(", ") || t("nothing");
    say(counts, dotted([
      queue.paused ? t("Paused") : "",
      `${number(queue.queued)} ${named("queued")} (${each(queue.by_priority)})`, t("{0} due", number(queue.due)), `${number(queue.processing)} ${named("processing")}`, `${number(queue.held)} ${named("held")}`,
      queue.oldest_due_seconds === null ? "" : t("the oldest due for {0}", lasting(queue.oldest_due_seconds)),
      t("in the last hour {0}", each(queue.last_hour)),
    ]));
  };
  page.every(EVERY, async () => {
    await Promise.all([learn("queue"), plots.past(page.get)]); // though another list may be seen first
    if (all) show(await page.get("queue"));
    if (Date.now() - looked < FAILURES) return;
    looked = Date.now();
    const [gates, busy] = await Promise.all(["destinations", "traffic"].map((what) => page.get(`queue/${what}`)));
    // Those that are held back come first.
    const rest = gates.filter(({ owner, domain, domains }) => owner || !busy.some((one) => one.held && [domain, ...domains].includes(one.domain)));
    const shown = [...busy.filter((one) => one.held), ...rest.map((held) => ({ held })), ...busy.filter((one) => !one.held)];
    const name = ({ domain, held }) => domain ?? held.domain ?? (held.domains.join(", ") || t("(the whole route)"));
    table.show(shown, (one) => one.domain ?? [one.held.route, name(one), one.held.owner].join(" "), (row, one) => {
      const { held, limits } = one;
      fill(row, [undefined, ...[one.unfinished, one.sent, one.failed, one.bounced].map((count) => (count === undefined ? "" : number(count)))]);
      say(row.cells[0].lastChild, dotted([...(held ? [held.route === "default" ? "" : held.route, held.owner, heldBack(held), held.window && !held.opens_in && t("{0} at once", number(held.window))] : []), limits && inWords(limits)]));
      row.cells[0].lastChild.classList.toggle("held", Boolean(held?.opens_in));
    }, (row, one) => row.cells[0].append(name(one), h("div.small")));
  }, outage);
  const form = h("form", { onsubmit: doing(outage, () => {
    const [domain, route] = ["domain", "route"].map((name) => form.elements[name].value.trim());
    return flush(page, { domain, route }, (text) => say(done, text));
  }) }, labelled(t("Deferred mail to"), input("domain", { placeholder: t("any domain") })),
    labelled(t("By the route"), input("route", { placeholder: t("any route") })), h("button", t("Try it now")));
  const done = h("p.small", { role: "status" });
  return [
    section(t("The last day"), h("div.bar", h("h2", t("The last day")), h("span.space"), plots.spans), plots.element),
    section(nameOf(page), h("h2", nameOf(page)), outage, all ? [counts, form, done] : "", table.element),
  ];
}

// Suppressions

function makeSuppressions(page) {
  const trouble = problem();
  const table = new Table(t("Addresses that get no mail"), { address: t("Address"), cause: t("Cause"), reason: t("Reason"), since: t("Since"), command: t("Command") }, { none: t("None of your own."), id: "suppressions" });
  const add = (one, first) => table.add(one.address, (row) => fill(row, [one.address, named(one.cause), one.reason, when(one.created_at)]), (row) =>
    row.cells[4].append(button(t("remove"), doing(trouble, async () => {
      await send("DELETE", `suppressions/${part(one.address)}`);
      table.remove(one.address);
    }), { ariaDescription: one.address })), first);
  const pages = new Pages(page.list, (items) => items.forEach((one) => add(one, false)));
  const form = h("form", { onsubmit: submitting(trouble, async () => {
    add(await send("POST", "suppressions", filled(form)), true);
    form.reset();
  }) },
    labelled(t("Address"), input("address", { required: true })),
    labelled(t("Reason"), h("input", { name: "reason" })),
    h("button", t("Suppress")));
  page.well(pages.start("suppressions?limit=50"), trouble);
  return section(t("Suppressions"), h("h2", t("Suppressions")), form, trouble, table.element, pages.element);
}
