// Now: what needs a person first, how much moves, and the tree that moves it.

import { ask, eventsIn, every, get, keepUp, page as pageOf, send } from "/ui/calls.js";
import { button, doing, fill, h, lasting, number, problem, say, Table, when } from "/ui/dom.js";
import { Plot } from "/ui/plot.js";

export const title = "Now";
export const scope = "admin";

const EVERY = 2000; // ms between two looks

export function open(place, page) {
  const { signal } = page;
  const trouble = problem(); // of a command
  const outage = problem(); // of a look
  const attention = h("ul", { class: "attention", "aria-label": "What needs attention" });
  const news = h("p", { class: "unseen", role: "status" });
  const counts = h("p", { class: "facts", id: "counts" });
  const rate = (value) => `${value < 10 ? value.toFixed(1) : Math.round(value)}/s`;
  const plots = {
    received: new Plot("Received", rate),
    sent: new Plot("Sent", rate),
    due: new Plot("Waiting", (value) => number(Math.round(value))),
    age: new Plot("Oldest due", lasting),
    errors: new Plot("Deliveries that failed", (value) => `${value.toFixed(0)} %`),
  };
  const tree = new Table("The tree, live", ["Actor", "State", "Restarts", "Mailbox", "Last event", "Command"], { id: "tree" });
  const hand = new Table("In the senders' hands", ["Message", "Since", "Attempt", "Priority"], {
    none: "Nothing is being delivered.", id: "hand",
  });
  place.append(
    h("section", { "aria-label": "Attention" }, attention, news, trouble, outage),
    h("section", { "aria-label": "Traffic" }, counts, h("div", { class: "plots" }, Object.values(plots).map((plot) => plot.element))),
    h("section", { "aria-label": "Supervision" }, tree.element),
    h("section", { "aria-label": "Deliveries" }, hand.element),
  );

  const command = (name, verb) =>
    doing(trouble, async () => {
      await send("POST", `/api/v1/supervision/${encodeURIComponent(name)}/${verb()}`);
      showTree(tree, command, await get("/api/v1/supervision"));
    });

  keepUp(signal, async () => {
    const response = await ask("/api/v1/supervision/events", { signal });
    for await (const event of eventsIn(response)) {
      showTree(tree, command, event.kind === "tree" ? event.data : await get("/api/v1/supervision", { signal }));
    }
  }, (text) => say(outage, text));

  let before = null;
  every(EVERY, signal, async () => {
    let seen = null;
    try {
      seen = await get("/api/v1/overview", { signal });
      showAttention(attention, news, seen.attention);
      showTraffic(counts, plots, seen, before);
      before = { at: performance.now(), counters: seen.counters };
      showTree(tree, command, await get("/api/v1/supervision", { signal }));
      tree.element.classList.remove("stale");
      showHand(hand, (await pageOf("/api/v1/outbound?status=processing&limit=20", { signal })).items);
      hand.element.classList.remove("stale");
    } catch (error) {
      // What was seen last is not how it is now.
      hand.element.classList.add("stale");
      if (seen === null) {
        tree.element.classList.add("stale");
        say(counts, "What moves is unknown.");
        for (const plot of Object.values(plots)) plot.push(null);
        before = null;
      }
      throw error;
    }
  }, (text) => say(outage, text));
}

// Changed in place, so that a link keeps the focus; read out when a concern comes or goes, not with
// every second that it lasts.
function showAttention(list, news, concerns) {
  const wanted = concerns.length ? concerns : [{ grade: "ok", text: "Nothing needs attention.", about: null }];
  while (list.childElementCount > wanted.length) list.lastElementChild.remove();
  wanted.forEach((one, at) => {
    const item = list.children[at] ?? list.appendChild(h("li", {}, h("a")));
    item.className = one.grade;
    say(item.firstChild, one.text);
    if (one.about && one.about !== "now") item.firstChild.href = `#/${one.about}`;
    else item.firstChild.removeAttribute("href");
  });
  const about = wanted.map((one) => one.text.replace(/\d+/g, "")).join();
  if (news.dataset.about !== about) say(news, wanted.map((one) => one.text).join(" "));
  news.dataset.about = about;
}

function showTraffic(counts, plots, seen, before) {
  const { queue } = seen;
  say(
    counts,
    queue
      ? `${number(seen.mailboxes)} mailboxes · ${number(queue.queued)} queued · ${number(queue.processing)} being delivered · ${number(queue.held)} held`
      : "The database does not answer.",
  );
  plots.due.push(queue ? queue.due : null);
  plots.age.push(queue ? queue.oldest_due_seconds ?? 0 : null);
  if (!before) return;
  const seconds = (performance.now() - before.at) / 1000;
  const gained = (name) => Math.max(0, seen.counters[name] - before.counters[name]);
  plots.received.push(gained("received") / seconds);
  plots.sent.push(gained("sent") / seconds);
  const bad = gained("deferred") + gained("bounced") + gained("failed");
  plots.errors.push(bad + gained("sent") ? (100 * bad) / (bad + gained("sent")) : 0);
}

function showTree(table, command, root) {
  const nodes = [];
  const walk = (node, depth) => {
    nodes.push({ node, depth, key: node.name });
    for (const one of node.processes) {
      const said = one.pid === null ? "none now" : `pid ${one.pid}, ${(one.cpu_seconds ?? 0).toFixed(1)} s of CPU`;
      const shown = { name: one.name, state: one.pid === null ? "" : "running", restarts: one.restarts, mailbox_depth: "", last_event: said };
      nodes.push({ node: shown, depth: depth + 1, key: `${node.name} ${one.name}`, process: true });
    }
    for (const child of node.children) walk(child, depth + 1);
  };
  walk(root, 0);
  table.show(
    nodes,
    ({ key }) => key,
    (row, { node, depth }) => {
      row.cells[0].className = `actor indent-${Math.min(depth, 3)}`;
      row.cells[1].className = `state ${node.state}`;
      fill(row, [node.name, node.state.replace("_", " "), node.restarts, node.mailbox_depth, node.last_event]);
      const swap = row.querySelector(".swap");
      if (swap) say(swap, node.state === "paused" ? "resume" : "pause");
    },
    (row, { node, depth, process }) => {
      if (depth === 0 || process) return;
      const swap = button("pause", (pressed) => command(node.name, () => swap.textContent)(pressed), { class: "swap" });
      row.cells[5].append(button("restart", command(node.name, () => "restart")), " ", swap, " ", h("a", { href: `#/logs?actor=${encodeURIComponent(node.name)}`, text: "log" }));
      for (const part of row.cells[5].children) part.ariaDescription = node.name;
    },
  );
}

function showHand(table, items) {
  table.show(
    items,
    (one) => one.id,
    (row, one) => fill(row, [undefined, when(one.created_at), one.attempts, one.priority]),
    (row, one) => row.cells[0].append(h("a", { href: `#/queue/${one.id}`, text: one.subject ?? one.id })),
  );
}
