// Now: what needs a person first, mail as it flows, how much moved and moves, and the tree that moves it.

import { ask, clock, eventsIn, every, get, keepUp, page as pageOf, send } from "/ui/calls.js";
import { asking } from "/ui/dialogs.js";
import { button, copyButton, doing, fill, h, lasting, number, problem, say, since, Table, tenths, titled, when } from "/ui/dom.js";
import { Plot, SPANS } from "/ui/plot.js";
import { language, named, spoken, t } from "/ui/strings.js";

export const title = t("Now");
export const scope = "admin";

const EVERY = 2000; // ms between two looks
const PAST = 60000; // ms between two looks at what the relay has kept
const rate = (value) => `${value < 10 ? tenths(value) : number(Math.round(value))}/s`;
const whole = (value) => number(Math.round(value));

export function open(place, page) {
  const { signal } = page;
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const attention = h("ul", { class: "attention", "aria-label": t("What needs attention") });
  const news = h("p", { class: "unseen", role: "status" });
  const counts = h("p", { class: "facts", id: "counts" });
  const flow = makeFlow();
  const plots = {
    received: new Plot(t("Received"), rate),
    sent: new Plot(t("Sent"), rate),
    waiting: new Plot(t("Waiting"), whole),
    age: new Plot(t("Oldest due"), (seconds) => (seconds < 1 ? "0 s" : lasting(seconds))),
    errors: new Plot(t("Failures"), (value) => `${whole(value)} %`),
  };
  const all = Object.values(plots);
  const spans = h("p", { class: "bar", role: "group", "aria-label": t("How far back") }, Object.entries(SPANS).map(([hours, text]) =>
    button(text, (pressed) => choose(Number(hours), pressed.currentTarget), { "aria-pressed": hours === "1" ? "true" : "false" })));
  const choose = (hours, pressed) => {
    for (const one of spans.children) one.ariaPressed = String(one === pressed);
    for (const plot of all) {
      plot.hours = hours;
      plot.draw();
    }
  };
  const tree = new Table(t("The tree, live"), { actor: t("Actor"), state: t("State"), restarts: t("Restarts"), mailbox: t("Mailbox"), last: t("Last"), command: t("Command") }, { id: "tree" });
  const menu = h("div", { id: "commands", popover: "auto" });
  const hand = new Table(t("In the senders' hands"), { message: t("Message"), since: t("Since"), attempt: t("Attempt"), priority: t("Priority") }, { none: t("Nothing is being delivered."), id: "hand" });
  place.append(
    h("section", { "aria-label": t("Attention") }, attention, news, trouble, outage),
    h("section", { "aria-label": t("Mail in flight") }, flow.element),
    h("section", { "aria-label": t("Traffic") }, h("div", { class: "bar" }, counts, h("span", { class: "space" }), spans), h("div", { class: "plots" }, all.map((plot) => plot.element))),
    h("section", { "aria-label": t("Supervision") }, tree.element, menu),
    h("section", { "aria-label": t("Deliveries") }, hand.element),
  );

  const resume = ({ about, place }) => doing(trouble, () => (about === "now" ? command(place, "resume") : send("POST", "/api/v1/queue/resume")));
  const command = async (name, verb) => {
    await send("POST", `/api/v1/supervision/${encodeURIComponent(name)}/${verb}`);
    show(await get("/api/v1/supervision"));
  };
  const show = (root) => {
    showTree(tree, root, (node, pressed) => showMenu(menu, node, pressed, trouble, command));
    flow.states(root);
  };

  keepUp(signal, async () => {
    const response = await ask("/api/v1/supervision/events", { signal });
    for await (const event of eventsIn(response)) show(event.kind === "tree" ? event.data : await get("/api/v1/supervision", { signal }));
  }, (text) => say(outage, text));

  let before = null;
  let kept = -Infinity; // when the relay was asked last for what it has kept
  every(EVERY, signal, async () => {
    let seen = null;
    try {
      seen = await get("/api/v1/overview", { signal });
      showAttention(attention, news, seen.attention, resume);
      const moved = rates(seen, before);
      before = { at: performance.now(), counters: seen.counters };
      showTraffic(counts, plots, seen, moved);
      flow.show(seen, moved);
      show(await get("/api/v1/supervision", { signal }));
      tree.element.classList.remove("stale");
      showHand(hand, (await pageOf("/api/v1/outbound?status=processing&limit=20", { signal })).items);
      hand.element.classList.remove("stale");
      if (clock.now() - kept > PAST) {
        const hours = Math.min(24, Math.ceil((clock.now() - kept) / 3600e3) || 1);
        showPast(plots, await get(`/api/v1/history?hours=${hours}`, { signal }));
        kept = clock.now();
      }
    } catch (error) {
      // What was seen last is not how it is now.
      hand.element.classList.add("stale");
      if (seen === null) {
        tree.element.classList.add("stale");
        say(counts, t("What moves is unknown."));
        flow.show(null, null);
        for (const plot of all) plot.push(null);
        before = null;
      }
      throw error;
    }
  }, (text) => say(outage, text));
}

// What needs attention, and what mends it

// Changed in place, so that a link keeps the focus; read out when a concern comes or goes, not with
// every second that it lasts.
function showAttention(list, news, concerns, resume) {
  const wanted = concerns.length ? concerns : [{ grade: "ok", text: t("Nothing needs attention.") }];
  while (list.childElementCount > wanted.length) list.lastElementChild.remove();
  wanted.forEach((one, at) => {
    const item = list.children[at] ?? list.appendChild(h("li", {}, h("a")));
    item.className = one.grade;
    const said = spoken(one.text);
    say(item.firstChild, said ?? one.text);
    item.firstChild.lang = said || !concerns.length ? language : "en"; // the relay's own words
    if (one.about && one.about !== "now") item.firstChild.setAttribute("href", `#/${one.about}${one.place ? `/${one.place}` : ""}`);
    else item.firstChild.removeAttribute("href");
    if ((item.dataset.command ?? "") === (one.command ?? "")) return;
    item.dataset.command = one.command ?? "";
    item.replaceChildren(item.firstChild, ...(one.command ? [h("span", { class: "mends" }, h("code", { text: one.command }), copyButton(one.command, t("the command")),
      / resume\b/.test(one.command) ? button(named("resume"), resume(one), { class: "copy", ariaDescription: one.text }) : "")] : []));
  });
  const about = wanted.map((one) => one.text.replace(/\d+/g, "")).join();
  if (news.dataset.about !== about) say(news, [...list.children].map((item) => item.firstChild.textContent).join(" "));
  news.dataset.about = about;
}

// Traffic

// By counter: how many a second since the look before; null at the first.
function rates(seen, before) {
  if (!before) return null;
  const seconds = (performance.now() - before.at) / 1000;
  return Object.fromEntries(Object.entries(seen.counters).map(([name, value]) => [name, Math.max(0, value - before.counters[name]) / seconds]));
}

// In per cent; null where nothing ended.
const share = (bad, good) => (bad + good ? (100 * bad) / (bad + good) : null);

function showTraffic(counts, plots, { mailboxes, queue }, moved) {
  say(counts, queue
    ? t("{0} mailboxes · {1} queued · {2} being delivered · {3} held", number(mailboxes), number(queue.queued), number(queue.processing), number(queue.held))
    : t("The database does not answer."));
  plots.waiting.push(queue ? queue.queued : null);
  plots.age.push(queue ? queue.oldest_due_seconds ?? 0 : null);
  if (!moved) return;
  plots.received.push(moved.received);
  plots.sent.push(moved.sent);
  const failed = share(moved.failed + moved.bounced, moved.sent);
  if (failed !== null) plots.errors.push(failed);
}

function showPast(plots, minutes) {
  const over = minutes.filter((one) => Date.parse(one.at) + 60000 <= clock.now());
  const put = (name, value) => plots[name].past(over.map((one) => [Date.parse(one.at) + 30000, value(one)]).filter(([, value]) => value !== null));
  put("received", (one) => one.received / 60);
  put("sent", (one) => one.sent / 60);
  put("waiting", (one) => one.waiting);
  put("age", (one) => one.oldest_due_seconds ?? 0);
  put("errors", (one) => share(one.failed + one.bounced, one.sent));
}

// Mail in flight: from station to station, with how much passes and what waits

function makeFlow() {
  const stations = new Map();
  const edges = [];
  const row = (label, names) => h("ol", { class: "flow", "aria-label": label }, names.map(([name, text, counter]) => {
    const waits = h("small");
    const station = h("span", { class: "station" }, h("b", { text }), waits);
    stations.set(name, { station, waits });
    if (!counter) return h("li", {}, station);
    const speed = h("span", { class: "rate" });
    const edge = h("span", { class: "edge" }, speed);
    edges.push({ edge, speed, counter });
    return h("li", {}, edge, station);
  }));
  const back = h("p", { class: "small" });
  const element = h("div", { id: "flow" },
    row(t("Mail that comes in"), [["in", t("SMTP")], ["writer", "writer", "received"], ["summariser", "summariser", "received"], ["list", t("mailboxes"), "parsed"]]),
    row(t("Mail that leaves"), [["queue", t("queue")], ["claimer", "claimer", "claimed"], ["sender", "sender", "claimed"], ["out", t("out"), "sent"]]),
    back);
  const depths = {};
  const show = (seen, moved) => {
    const queue = seen?.queue;
    const texts = {
      writer: t("{0} waiting", number(depths.writer ?? 0)),
      summariser: t("{0} to parse", number(seen?.unparsed)),
      list: t("live: {0}", number(seen?.mailboxes)),
      queue: t("{0} waiting, {1} due", number(queue?.queued), number(queue?.due)),
      claimer: t("{0} wake-ups", number(depths.claimer ?? 0)),
      sender: t("{0} in hand", number(queue?.processing)),
    };
    for (const [name, text] of Object.entries(texts)) say(stations.get(name).waits, seen ? text : "?");
    for (const { edge, speed, counter } of edges) {
      const value = moved?.[counter] ?? 0;
      say(speed, moved ? rate(value) : "…");
      edge.classList.toggle("moves", value > 0);
      edge.style.setProperty("--pace", `${Math.max(0.25, 2 / (1 + value)).toFixed(2)}s`);
    }
    say(back, moved ? t("Back to the queue {0} · bounced {1} · failed {2}", rate(moved.deferred), rate(moved.bounced), rate(moved.failed)) : "");
  };
  const states = (root) => {
    for (const one of [root, ...root.children.flatMap((group) => [group, ...group.children])]) {
      depths[one.name] = one.mailbox_depth;
      const known = stations.get(one.name);
      if (known) known.station.className = `station state ${one.state}`;
    }
  };
  return { element, show, states };
}

// The tree

function showTree(table, root, opened) {
  const nodes = [];
  const walk = (node, depth) => {
    nodes.push({ node, depth, key: node.name });
    for (const one of node.processes) {
      const last_event = one.pid === null ? t("none now") : t("pid {0}, {1} s of CPU", one.pid, tenths(one.cpu_seconds ?? 0));
      nodes.push({ node: { name: one.name, state: one.pid === null ? "" : "running", restarts: one.restarts, mailbox_depth: "", last_event }, depth: depth + 1, key: `${node.name} ${one.name}`, process: true });
    }
    for (const child of node.children) walk(child, depth + 1);
  };
  walk(root, 0);
  table.show(
    nodes,
    ({ key }) => key,
    (row, { node, depth }) => {
      row.known = node;
      row.cells[0].className = `actor indent-${Math.min(depth, 3)}`;
      row.cells[1].className = `state ${node.state}`;
      const last = lastOf(node);
      fill(row, [node.name, named(node.state), number(node.restarts), node.mailbox_depth === "" ? "" : number(node.mailbox_depth), last.at ? `${last.text} · ${since(last.at)}` : last.text]);
      row.cells[4].title = when(last.at);
    },
    (row, { node, depth, process }) => {
      if (node.children?.length) row.className = "of-group";
      if (depth === 0 || process) return;
      row.cells[5].append(button("⋯", (pressed) => opened(row.known, pressed.currentTarget), { ariaLabel: t("Commands for {0}", node.name), ariaHasPopup: "dialog" }));
    },
  );
}

// What an actor said itself, or what supervision did to it, whichever is later.
function lastOf({ last_log: line, last_event: text, last_event_at: at }) {
  return line && !(at && Date.parse(line.at) < Date.parse(at)) ? { text: line.event, at: line.at } : { text, at };
}

function showMenu(menu, node, pressed, trouble, command) {
  const close = () => menu.hidePopover();
  const acts = node.commands.map((verb) => button(named(verb), (chosen) => {
    close();
    if (verb !== "restart") return doing(trouble, () => command(node.name, verb))(chosen);
    asking({ title: t("Restart {0}?", node.name), says: t("What it has in hand is finished first; what waits is kept."), fields: [], does: t("Restart"), act: () => command(node.name, verb) });
  }));
  menu.replaceChildren(h("b", { text: node.name }), ...acts, h("a", { href: `#/logs?actor=${encodeURIComponent(node.name)}`, text: t("log") }));
  menu.ariaLabel = t("Commands for {0}", node.name);
  menu.role = "dialog";
  menu.showPopover({ source: pressed });
  const { right, bottom, top } = pressed.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  menu.style.left = `${Math.max(8, right - width)}px`;
  menu.style.top = `${bottom + height > innerHeight ? Math.max(8, top - height) : bottom}px`;
  acts[0]?.focus();
}

function showHand(table, items) {
  table.show(
    items,
    (one) => one.id,
    (row, one) => fill(row, [undefined, when(one.created_at), one.attempts, named(one.priority)]),
    (row, one) => row.cells[0].append(h("a", { href: `#/queue/${one.id}`, text: titled(one.subject, one.id) })),
  );
}
