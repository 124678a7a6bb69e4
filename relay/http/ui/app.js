// The operator's page: make an inbox and watch it, see the supervision tree and touch it.
//
// Everything from outside is set as text, never as markup; a message's HTML is shown only in a
// frame with an empty sandbox.  Tokens live in this page's memory and end with it.  Rows are
// changed in place, so that what has the keyboard's focus keeps it while the page is live.

const element = (id) => document.getElementById(id);
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Calls ----------------------------------------------------------------------------------------

// A refusal: trying again would give the same.  Anything else that fails is an outage.
class Refused extends Error {}

async function ask(path, options = {}) {
  let response;
  try {
    response = await fetch(path, { cache: "no-store", ...options });
  } catch {
    throw new Error("The relay does not answer.");
  }
  if (response.ok) return response;
  let detail = `The relay answered ${response.status}.`;
  try {
    detail = (await response.json()).detail ?? detail;
  } catch {
    // no problem document: the status has to do
  }
  const wait = response.status === 429 || response.status >= 500;
  throw wait ? new Error(detail) : new Refused(detail);
}

// Server-Sent Events over fetch: EventSource cannot send a token in a header.
async function* eventsIn(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    let text = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      text += value;
      const blocks = text.split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const event = { event: "message", data: "", id: null };
        for (const line of block.split("\n")) {
          const at = line.indexOf(": ");
          if (at > 0) event[line.slice(0, at)] = line.slice(at + 2);
        }
        if (event.data) yield { kind: event.event, id: event.id, data: JSON.parse(event.data) };
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // leaving early ends the call, too
  }
}

// Rows -----------------------------------------------------------------------------------------

// A phone shows rows as blocks without the heads, so each cell carries its own.
function makeRow(heads) {
  const row = document.createElement("tr");
  row.role = "row";
  for (const head of heads) {
    const cell = document.createElement("td");
    cell.role = "cell";
    cell.dataset.head = head;
    cell.className = head.toLowerCase().replace(" ", "-");
    row.append(cell);
  }
  return row;
}

function fill(row, values) {
  values.forEach((value, at) => {
    const text = String(value ?? "");
    if (row.cells[at].textContent !== text) row.cells[at].textContent = text;
  });
}

function makeButton(text, act) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = text;
  button.addEventListener("click", act);
  return button;
}

// Health ---------------------------------------------------------------------------------------

async function showHealth() {
  const place = element("health");
  let text = "ready";
  try {
    await ask("/readyz");
    place.className = "ok";
  } catch (error) {
    text = error.message;
    place.className = "problem";
  }
  if (place.textContent !== text) place.textContent = text; // a status is read out when it changes
}

// An inbox -------------------------------------------------------------------------------------

const MESSAGE = ["Received", "From", "Subject", "Bytes"];
let inbox = null; // the one that is followed

element("create").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const given = Object.fromEntries([...new FormData(submitted.target)].filter(([, v]) => v !== ""));
  if (given.ttl_minutes) given.ttl_minutes = Number(given.ttl_minutes);
  element("inbox-problem").textContent = "";
  try {
    const response = await ask("/api/v1/mailboxes", {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(given),
    });
    openInbox(await response.json());
  } catch (error) {
    element("inbox-problem").textContent = error.message;
  }
});

function openInbox(made) {
  inbox?.left.abort();
  inbox = {
    base: `/api/v1/mailboxes/${encodeURIComponent(made.address)}`,
    token: made.session_token,
    headers: { "X-Session-Token": made.session_token },
    left: new AbortController(),
    rows: new Map(), // by message id
  };
  element("inbox").hidden = false;
  element("message").hidden = true;
  element("messages").replaceChildren();
  element("address").textContent = made.address;
  element("stream").textContent = "connecting";
  element("expires").textContent = `until ${new Date(made.expires_at).toLocaleString()}`;
  follow(inbox);
}

async function follow(box) {
  const { signal } = box.left;
  const tell = (text) => {
    if (!signal.aborted) element("stream").textContent = text;
  };
  let last = null;
  while (!signal.aborted) {
    try {
      const headers = last ? { ...box.headers, "Last-Event-ID": last } : box.headers;
      const response = await ask(`${box.base}/events`, { headers, signal });
      if (!last) {
        // The stream begins at the present: what came before it stood is in the list.
        const before = await (await ask(`${box.base}/messages?limit=200`, { headers, signal })).json();
        for (const entry of before.reverse()) showEntry(box, entry);
      }
      tell("listening");
      for await (const event of eventsIn(response)) {
        last = event.id ?? last;
        if (event.kind === "new_message") showEntry(box, event.data);
      }
    } catch (error) {
      if (error instanceof Refused) {
        tell(error.message);
        return;
      }
    }
    tell("reconnecting");
    await pause(1000);
  }
}

function showEntry(box, entry) {
  if (box !== inbox) return;
  let row = box.rows.get(entry.id);
  if (!row) {
    row = makeRow(MESSAGE);
    const open = makeButton("", () => openMessage(box, entry.id));
    open.className = "link";
    row.cells[2].append(open);
    box.rows.set(entry.id, row);
    element("messages").prepend(row);
  }
  row.cells[0].textContent = new Date(entry.received_at).toLocaleTimeString();
  row.cells[1].textContent = entry.from_address ?? "";
  row.cells[2].firstChild.textContent = entry.subject || "(no subject)";
  row.cells[3].textContent = entry.size;
}

async function openMessage(box, id) {
  let message;
  element("inbox-problem").textContent = "";
  try {
    message = await (await ask(`${box.base}/messages/${id}`, { headers: box.headers })).json();
  } catch (error) {
    element("inbox-problem").textContent = error.message;
    return;
  }
  if (box !== inbox) return;
  const facts = [`from ${message.from_address || "nobody"}`, `to ${message.to}`];
  if (message.otp) facts.push(`code ${message.otp}`);
  if (message.attachments.length) {
    facts.push(`attached: ${message.attachments.map((one) => one.filename ?? one.content_type).join(", ")}`);
  }
  if (message.error) facts.push(message.error);
  element("message-subject").textContent = message.subject || "(no subject)";
  element("message-facts").textContent = facts.join(" · ");
  element("message-text").textContent = message.body_text ?? "";
  element("message-forms").hidden = message.body_html === null || message.body_text === null;
  element("as-text").onclick = () => showAs(box, id, false);
  element("as-html").onclick = () => showAs(box, id, true);
  showAs(box, id, message.body_text === null && message.body_html !== null);
  element("message").hidden = false;
  element("message-subject").focus();
}

function showAs(box, id, html) {
  element("as-text").ariaPressed = String(!html);
  element("as-html").ariaPressed = String(html);
  element("message-text").hidden = html;
  element("message-html").replaceChildren();
  if (!html) return;
  // A frame cannot send headers, so the token is in its address, which no one else learns: the
  // sandbox runs no script, and neither the frame nor its links send a referrer.
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "");
  frame.title = "The message as HTML";
  frame.src = `${box.base}/messages/${id}/html?token=${encodeURIComponent(box.token)}`;
  element("message-html").append(frame);
}

// Supervision ----------------------------------------------------------------------------------

const NODE = ["Actor", "State", "Restarts", "Mailbox", "Last event", "Command"];
let operator = null; // who is signed in

element("login").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  const token = new FormData(submitted.target).get("token").trim();
  operator?.left.abort();
  operator = {
    headers: { Authorization: `Bearer ${token}` },
    left: new AbortController(),
    rows: new Map(), // by name
  };
  element("tree-problem").textContent = "";
  watchTree(operator);
});

element("logout").addEventListener("click", () => {
  signOut("");
  element("login").elements.token.focus();
});

function signOut(reason) {
  operator.left.abort();
  operator = null;
  element("nodes").replaceChildren();
  element("operator").hidden = true;
  element("login").hidden = false;
  element("tree-problem").textContent = reason;
}

async function watchTree(who) {
  const { signal } = who.left;
  while (!signal.aborted) {
    try {
      const response = await ask("/api/v1/supervision/events", { headers: who.headers, signal });
      for await (const event of eventsIn(response)) {
        if (event.kind === "tree") showTree(who, event.data);
        else await refresh(who);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof Refused) {
        signOut(error.message);
        return;
      }
      element("tree-problem").textContent = error.message;
    }
    await pause(1000);
  }
}

async function refresh(who) {
  const response = await ask("/api/v1/supervision", { headers: who.headers, signal: who.left.signal });
  showTree(who, await response.json());
}

// Events tell of changes of state; how full a mailbox is has to be looked at.
async function lookAgain() {
  if (!operator || document.hidden || element("operator").hidden) return;
  try {
    await refresh(operator);
  } catch {
    // the stream of events fails, too, and says so
  }
}

function showTree(who, root) {
  if (who !== operator) return;
  const place = element("nodes");
  let at = 0;
  const show = (node, depth) => {
    let row = who.rows.get(node.name);
    if (!row) {
      row = makeRow(NODE);
      who.rows.set(node.name, row);
      if (depth > 0) {
        const swap = makeButton("pause", () => command(who, node.name, swap.textContent));
        row.cells[5].append(makeButton("restart", () => command(who, node.name, "restart")), " ", swap);
        for (const button of row.querySelectorAll("button")) button.ariaDescription = node.name;
      }
    }
    row.cells[0].className = `actor indent-${Math.min(depth, 3)}`;
    row.cells[1].className = `state ${node.state}`;
    fill(row, [node.name, node.state, node.restarts, node.mailbox_depth, node.last_event]);
    const swap = row.cells[5].lastElementChild;
    const verb = node.state === "paused" ? "resume" : "pause";
    if (swap && swap.textContent !== verb) swap.textContent = verb;
    if (place.rows[at] !== row) place.insertBefore(row, place.rows[at] ?? null);
    at += 1;
    for (const child of node.children) show(child, depth + 1);
  };
  show(root, 0);
  while (place.rows.length > at) place.lastElementChild.remove();
  element("tree-problem").textContent = "";
  if (element("operator").hidden) {
    element("login").reset(); // the token stays in no field
    element("login").hidden = true;
    element("operator").hidden = false;
    element("logout").focus({ preventScroll: true });
  }
}

async function command(who, name, verb) {
  try {
    const path = `/api/v1/supervision/${encodeURIComponent(name)}/${verb}`;
    await ask(path, { method: "POST", headers: who.headers });
    await refresh(who);
  } catch (error) {
    if (who === operator) element("tree-problem").textContent = error.message;
  }
}

showHealth();
setInterval(showHealth, 10000);
setInterval(lookAgain, 2000);
