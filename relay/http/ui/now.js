// Now: what needs a person first, mail as it flows, how much moved and moves, and the tree that moves it.

import { ask, eventsIn, keepUp, send } from "./calls.js";
import { commanding } from "./dialogs.js";
import { button, copyButton, doing, dotted, fill, h, lasting, number, problem, say, section, since, Table, tenths, when } from "./dom.js";
import { Plots, rate, share } from "./plot.js";
import { language, named, spoken, t } from "./strings.js";

export const title = t("Now");
export const scope = "admin";

const EVERY = 2000; // ms between two looks
const hop = (value) => (value ? rate(value) : "0");

export function open(place, page) {
  const { signal } = page;
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const attention = h("ul.attention", { ariaLabel: t("What needs attention") });
  const news = h("p.unseen", { role: "status" });
  const counts = h("p.facts", { id: "counts" });
  const flow = makeFlow();
  const plots = new Plots(["received", "sent", "waiting", "age", "errors"], 1);
  const tree = makeTree((node, pressed) => showMenu(menu, node, pressed, trouble, command));
  const menu = h("div", { id: "commands", popover: "auto" });
  place.append(
    section(t("Attention"), attention, news, trouble, outage),
    section(t("Mail in flight"), flow.element),
    section(t("Traffic"), h("div.bar", counts, h("span.space"), plots.spans), plots.element),
    section(t("Supervision"), tree.element, menu),
  );

  const resume = ({ about, place }) => doing(trouble, () => (about === "now" ? command(place, "resume") : send("POST", "queue/resume")));
  const command = async (name, verb) => {
    await send("POST", `supervision/${encodeURIComponent(name)}/${verb}`);
    show(await page.get("supervision"));
  };
  const show = (root) => {
    tree.show(root);
    flow.states(new Map(leaves(root).map((node) => [node.name, node])));
  };

  keepUp(signal, async () => {
    const response = await ask("supervision/events", { signal });
    for await (const event of eventsIn(response)) show(event.kind === "tree" ? event.data : await page.get("supervision"));
  }, (text) => say(outage, text));

  let before = null;
  page.every(EVERY, async () => {
    let seen = null;
    try {
      seen = await page.get("overview");
      showAttention(attention, news, seen.attention, resume);
      const { counters, earlier } = seen;
      const then = before ?? earlier;
      showTraffic(counts, plots.each, seen, then && rates(counters, then.counters, before ? (performance.now() - before.at) / 1000 : earlier.seconds));
      flow.show(seen, before?.counters);
      before = { at: performance.now(), counters };
      show(await page.get("supervision"));
      tree.element.classList.remove("stale");
      await plots.past(page.get);
    } catch (error) {
      // What was seen last is not how it is now.
      if (seen === null) {
        tree.element.classList.add("stale");
        say(counts, t("What moves is unknown."));
        flow.show();
        for (const plot of plots.all) plot.push(null);
        before = null;
      }
      throw error;
    }
  }, outage);

  const find = ({ parts }) => tree.find(parts[0]);
  find(page);
  return find;
}

// What needs attention, and what mends it

// Changed in place, so that a link keeps the focus; read out when a concern comes or goes, not with
// every second that it lasts.
function showAttention(list, news, concerns, resume) {
  const wanted = concerns.length ? concerns : [{ grade: "ok", text: t("Nothing needs attention.") }];
  while (list.childElementCount > wanted.length) list.lastElementChild.remove();
  wanted.forEach((one, at) => {
    const item = list.children[at] ?? list.appendChild(h("li", h("a")));
    item.className = one.grade;
    const said = spoken(one.text);
    say(item.firstChild, said ?? one.text);
    item.firstChild.lang = said || !concerns.length ? language : "en"; // the relay's own words
    const place = one.place ? `${one.about === "logs" ? "?actor=" : "/"}${one.place}` : ""; // an actor's lines
    if (one.about) item.firstChild.setAttribute("href", `#/${one.about}${place}`);
    else item.firstChild.removeAttribute("href");
    if ((item.dataset.command ?? "") === (one.command ?? "")) return;
    item.dataset.command = one.command ?? "";
    item.replaceChildren(item.firstChild, ...(one.command ? [h("span.mends", h("code", one.command), copyButton(one.command, t("the command")),
      / resume\b/.test(one.command) ? button(named("resume"), resume(one), { class: "copy", ariaDescription: one.text }) : "")] : []));
  });
  const about = wanted.map((one) => one.text.replace(/\d+/g, "")).join();
  if (news.dataset.about !== about) say(news, [...list.children].map((item) => item.firstChild.textContent).join(" "));
  news.dataset.about = about;
}

// Traffic

// By counter: how many a second.
const rates = (now, then, seconds) => Object.fromEntries(Object.entries(now).map(([name, value]) => [name, Math.max(0, value - then[name]) / seconds]));

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

// Mail in flight: from station to station, with how much passes and what waits.  A dot is mail that
// has passed since the look before, or as many as a hop has room for.

const DOTS = 9;

function makeFlow() {
  const stations = {};
  const edges = [];
  const edge = (counter, kind = "") => {
    const speed = h("span");
    const made = h("div", { class: `edge ${kind}` }, speed);
    edges.push({ made, speed, counter });
    return made;
  };
  // An actor leads to its row in the tree, or to the view of what it has; what is none to a view.
  const row = (label, names, ...more) => h("div", h("ol.flow", { ariaLabel: label }, names.map(([name, counter, view, text]) => {
    const waits = h("small");
    const head = h("b", text ?? name);
    const item = h("li", counter ? edge(counter) : "", h("a.station", { href: `#/${view ?? `now/${name}`}` }, head, waits));
    stations[name] = { item, head, waits, actor: !text };
    return item;
  })), ...more);
  const again = edge("deferred", "again");
  const legend = h("p.small");
  const element = h("div", { id: "flow" },
    row(t("Mail that comes in"), [["ingest"], ["writer", "received"], ["summariser", "parsed"], ["list", "parsed", "mail/all", t("mailboxes")]]),
    row(t("Mail that leaves"), [["queue", "", "queue/queued", t("queue")], ["claimer", "claimed"], ["sender", "claimed", "queue/processing"], ["out", "sent", "queue/sent", t("out")]], again),
    legend);
  const depths = {};
  // `before`: the counters at the last look.
  const show = (seen, before) => {
    const { queue, earlier, counters } = seen ?? {};
    const per = earlier && rates(counters, earlier.counters, earlier.seconds);
    const speed = (counter) => (per ? hop(per[counter]) : "…");
    // What comes or goes by another way, once anything has.
    const also = (text, ways) => dotted([text, ...Object.entries(ways).map(([name, counter]) => counters?.[counter] && `${name} ${speed(counter)}`)]);
    const texts = {
      ingest: t("refused {0}", speed("refused")),
      writer: also(t("{0} waiting", number(depths.writer ?? 0)), { HTTP: "put", SES: "notified", loop: "looped" }),
      summariser: t("{0} to parse", number(seen?.unparsed)),
      list: t("live: {0}", number(seen?.mailboxes)),
      queue: also(t("{0} waiting, {1} due", number(queue?.queued), number(queue?.due)), { HTTP: "posted", SMTP: "submitted" }),
      claimer: t("{0} wake-ups", number(depths.claimer ?? 0)),
      sender: t("{0} in hand", number(queue?.processing)),
      out: also(t("failures {0}", per ? hop(per.bounced + per.failed) : "…"), { webhooks: "told" }),
    };
    for (const [name, text] of Object.entries(texts)) say(stations[name].waits, seen ? text : "?");
    for (const one of edges) {
      say(one.speed, one.counter === "deferred" ? t("back {0}", speed("deferred")) : speed(one.counter));
      one.made.classList.toggle("moves", per?.[one.counter] > 0);
      const passed = seen && before ? Math.min(DOTS, counters[one.counter] - before[one.counter]) : 0;
      for (let at = 0; at < passed; at += 1) {
        const dot = one.made.appendChild(h("i"));
        setTimeout(() => dot.remove(), 2 * EVERY);
        dot.style.animationDelay = `${Math.round((at / passed) * EVERY)}ms`;
      }
    }
    say(legend, earlier ? t("Each hop: what passed in the last {0}. A dot is mail that passes now.", lasting(earlier.seconds)) : "");
  };
  const states = (all) => {
    again.hidden = !all.has("sender");
    for (const [name, { item, head, actor }] of Object.entries(stations)) {
      const node = all.get(name);
      depths[name] = node?.mailbox_depth;
      if (!actor) continue;
      item.hidden = !node;
      head.className = `state ${node?.state}`;
    }
  };
  return { element, show, states };
}

// The tree: a row with others under it opens and shuts, and arrows walk through those that are seen.

function makeTree(opened) {
  const table = new Table(t("The tree, live"), { actor: t("Actor"), state: t("State"), restarts: t("Restarts"), mailbox: t("Mailbox"), last: t("Last"), command: t("Command") }, { id: "tree", role: "treegrid" });
  const { body } = table;
  const turned = new Set(); // what is not as at first: groups open, the processes of an actor not
  let root, wanted;
  const stand = (row) => {
    for (const one of body.rows) for (const it of [one, ...one.querySelectorAll("button")]) it.tabIndex = one === row ? 0 : -1;
  };
  const draw = () => {
    const shown = [];
    const walk = (node, key, lines) => {
      const under = [...(node.processes ?? []), ...(node.children ?? [])];
      const open = under.length > 0 && turned.has(key) !== node.children.length > 0;
      shown.push({ node, key, lines, open: under.length ? String(open) : null });
      if (open) under.forEach((one, at) => walk(one, one.children ? one.name : `${key} ${one.name}`, [...lines, at < under.length - 1]));
    };
    walk(root, root.name, []);
    table.show(shown, ({ key }) => key, fillNode, (row, { node, lines }) => {
      row.tabIndex = -1;
      row.cells[0].addEventListener("click", () => turn(row));
      if (lines.length && node.children) row.cells[5].append(button("⋯", (pressed) => opened(row.known, pressed.currentTarget), { tabIndex: -1, ariaLabel: t("Commands for {0}", node.name), ariaHasPopup: "dialog" }));
    });
    if (!body.querySelector("[tabindex='0']")) stand(body.rows[0]);
    const row = table.rows.get(wanted);
    if (!row) return;
    wanted = null;
    row.focus();
  };
  const turn = (row) => {
    if (!row.ariaExpanded) return;
    turned.delete(row.key) || turned.add(row.key);
    draw();
  };
  body.addEventListener("focusin", ({ target }) => stand(target.closest("tr")));
  body.addEventListener("keydown", (pressed) => {
    const { target, key } = pressed;
    if (pressed.altKey || pressed.ctrlKey || pressed.metaKey) return;
    const row = target.closest("tr");
    const rows = [...body.rows];
    const at = rows.indexOf(row);
    const open = row.ariaExpanded === "true";
    const to = {
      ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1, ArrowRight: open ? at + 1 : at,
      ArrowLeft: rows.findLastIndex((one, place) => place < at && one.ariaLevel < row.ariaLevel),
    }[key];
    if (key === "Enter" && target === row) row.querySelector("button")?.click();
    else if (to === undefined) return;
    else if (row.ariaExpanded && key === (open ? "ArrowLeft" : "ArrowRight")) turn(row);
    else rows[to]?.focus();
    pressed.preventDefault();
  });
  return {
    element: table.element,
    show: (seen) => {
      root = seen;
      draw();
    },
    find: (name) => {
      if (!name) return;
      wanted = name;
      turned.clear();
      if (root) draw();
    },
  };
}

const guide = (left, top, width, height) => `linear-gradient(var(--edge) 0 0) ${left}rem ${top} / ${width} ${height} no-repeat`;

function fillNode(row, { node, key, lines, open }) {
  const { children, pid } = node;
  row.known = node;
  row.key = key;
  row.ariaLevel = lines.length + 1;
  row.ariaExpanded = open;
  row.style.setProperty("--depth", lines.length);
  row.style.setProperty("--lines", lines.flatMap((on, at) => {
    const left = at * 1.25 + 0.5;
    const own = at === lines.length - 1; // else an ancestor's
    return [on || own ? guide(left, 0, "1px", on ? "100%" : "var(--mid)") : [], own ? guide(left, "var(--mid)", open ? ".75rem" : "1.5rem", "1px") : []].flat();
  }).join() || "none");
  row.classList.toggle("quiet", !node.restarts && !node.mailbox_depth);
  const state = pid === undefined ? node.state : pid === null ? "" : "running";
  row.cells[1].className = `state ${state}`;
  const last = children ? lastOf(node) : { text: pid === null ? t("none now") : t("pid {0}, {1} s of CPU", pid, tenths(node.cpu_seconds ?? 0)) };
  const counts = {};
  for (const one of children?.length ? leaves(node) : []) counts[one.state] = (counts[one.state] ?? 0) + 1;
  const within = Object.entries(counts).map(([name, count]) => `${number(count)} × ${named(name)}`).join(" · ");
  fill(row, [node.name, named(state), number(node.restarts), children && !within ? number(node.mailbox_depth) : "", within || (last.at ? `${last.text} · ${since(last.at)}` : last.text)]);
  row.cells[2].title = children ? policy(node) : "";
  row.cells[4].title = when(last.at);
}

const leaves = (node) => (node.children.length ? node.children.flatMap(leaves) : [node]);

// When it is started again; of a group, with whom, and when it gives up.
function policy({ restart, strategy, max_restarts: most, within }) {
  const ways = { permanent: t("Started again whenever it ends."), one_for_one: t("A child that fails is started again alone."), rest_for_one: t("A child that fails is started again with those after it.") };
  return [restart, strategy].filter(Boolean).map((word) => ways[word] ?? word).concat(strategy && most !== null ? t("Gives up after more than {0} in {1}.", number(most), lasting(within)) : []).join(" ");
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
    commanding(node.name, verb, () => command(node.name, verb));
  }));
  menu.replaceChildren(h("b", node.name), h("span.small", policy(node)), ...acts, h("a", { href: `#/logs?actor=${encodeURIComponent(node.name)}`, text: t("log") }));
  menu.ariaLabel = t("Commands for {0}", node.name);
  menu.role = "dialog";
  menu.onkeydown = (pressed) => {
    const all = [...menu.querySelectorAll("button, a")];
    const at = all.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: -1 }[pressed.key];
    if (to === undefined) return;
    all.at(to % all.length).focus();
    pressed.preventDefault();
  };
  menu.showPopover({ source: pressed });
  const { right, bottom, top } = pressed.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = menu;
  menu.style.left = `${Math.max(8, right - width)}px`;
  menu.style.top = `${bottom + height > innerHeight ? Math.max(8, top - height) : bottom}px`;
  acts[0]?.focus();
}
