// The operator's page: make an inbox and watch it, see the supervision tree and touch it.
// Everything from outside is set as text, never as markup.

const element = (id) => document.getElementById(id);

const cell = (text) => {
  const td = document.createElement("td");
  td.textContent = text ?? "";
  return td;
};

async function problemOf(response) {
  try {
    return (await response.json()).detail;
  } catch {
    return `The relay answered ${response.status}.`;
  }
}

// Server-Sent Events over fetch: EventSource cannot send a token in a header.
async function* eventsOf(path, headers) {
  const response = await fetch(path, { headers, cache: "no-store" });
  if (!response.ok) throw Object.assign(new Error(await problemOf(response)), { final: true });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
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
}

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Health ---------------------------------------------------------------------------------------

async function showHealth() {
  const place = element("health");
  try {
    const response = await fetch("/readyz", { cache: "no-store" });
    place.textContent = response.ok ? "ready" : await problemOf(response);
    place.className = response.ok ? "ok" : "problem";
  } catch {
    place.textContent = "The relay does not answer.";
    place.className = "problem";
  }
}

// An inbox -------------------------------------------------------------------------------------

let inbox = 0; // the one that is followed; an older one stops at its next event

element("create").addEventListener("submit", async (submitted) => {
  submitted.preventDefault();
  const given = Object.fromEntries([...new FormData(submitted.target)].filter(([, v]) => v !== ""));
  if (given.ttl_minutes) given.ttl_minutes = Number(given.ttl_minutes);
  element("inbox-problem").textContent = "";
  const response = await fetch("/api/v1/mailboxes", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(given),
  });
  if (!response.ok) {
    element("inbox-problem").textContent = await problemOf(response);
    return;
  }
  const made = await response.json();
  element("inbox").hidden = false;
  element("message").hidden = true;
  element("messages").replaceChildren();
  element("address").textContent = made.address;
  element("expires").textContent = `until ${new Date(made.expires_at).toLocaleString()}`;
  follow(made, ++inbox);
});

async function follow(made, mine) {
  const base = `/api/v1/mailboxes/${encodeURIComponent(made.address)}`;
  let last = null;
  while (mine === inbox) {
    try {
      const headers = { "X-Session-Token": made.session_token };
      if (last) headers["Last-Event-ID"] = last;
      element("stream").textContent = "listening";
      for await (const event of eventsOf(`${base}/events`, headers)) {
        if (mine !== inbox) return;
        last = event.id ?? last;
        if (event.kind === "new_message") addMessage(base, made, event.data);
      }
    } catch (error) {
      if (error.final) {
        element("stream").textContent = error.message;
        return;
      }
    }
    element("stream").textContent = "reconnecting";
    await pause(1000);
  }
}

function addMessage(base, made, entry) {
  const row = document.createElement("tr");
  const open = document.createElement("button");
  open.className = "link";
  open.textContent = entry.subject || "(no subject)";
  open.addEventListener("click", () => showMessage(base, made, entry.id));
  const subject = document.createElement("td");
  subject.append(open);
  row.append(
    cell(new Date(entry.received_at).toLocaleTimeString()),
    cell(entry.from_address),
    subject,
    cell(entry.size),
  );
  element("messages").prepend(row);
}

async function showMessage(base, made, id) {
  const response = await fetch(`${base}/messages/${id}`, {
    headers: { "X-Session-Token": made.session_token },
  });
  if (!response.ok) {
    element("inbox-problem").textContent = await problemOf(response);
    return;
  }
  const message = await response.json();
  element("message").hidden = false;
  element("message-subject").textContent = message.subject || "(no subject)";
  const facts = [`from ${message.from_address}`, `to ${message.to}`];
  if (message.otp) facts.push(`code ${message.otp}`);
  if (message.attachments.length) facts.push(`${message.attachments.length} attachments`);
  element("message-facts").textContent = facts.join(" · ");
  element("message-text").textContent = message.body_text ?? message.body_html ?? "";
}

// Supervision ----------------------------------------------------------------------------------

let watch = 0;

element("login").addEventListener("submit", (submitted) => {
  submitted.preventDefault();
  watchTree({ Authorization: `Bearer ${new FormData(submitted.target).get("token")}` }, ++watch);
});

async function watchTree(headers, mine) {
  while (mine === watch) {
    try {
      for await (const event of eventsOf("/api/v1/supervision/events", headers)) {
        if (mine !== watch) return;
        element("tree-problem").textContent = "";
        if (event.kind === "tree") showTree(event.data, headers);
        else await refresh(headers);
      }
    } catch (error) {
      element("tree-problem").textContent = error.message;
      if (error.final) return;
    }
    await pause(1000);
  }
}

async function refresh(headers) {
  const response = await fetch("/api/v1/supervision", { headers });
  if (response.ok) showTree(await response.json(), headers);
}

function showTree(root, headers) {
  const rows = [];
  const add = (node, depth) => {
    const row = document.createElement("tr");
    const name = cell(node.name);
    name.className = `indent-${Math.min(depth, 3)}`;
    const state = cell(node.state);
    state.className = node.state;
    const commands = document.createElement("td");
    if (depth > 0) {
      for (const verb of ["restart", node.state === "paused" ? "resume" : "pause"]) {
        const button = document.createElement("button");
        button.textContent = verb;
        button.addEventListener("click", () => command(node.name, verb, headers));
        commands.append(button, " ");
      }
    }
    row.append(name, state, cell(node.restarts), cell(node.mailbox_depth), cell(node.last_event), commands);
    rows.push(row);
    for (const child of node.children) add(child, depth + 1);
  };
  add(root, 0);
  element("nodes").replaceChildren(...rows);
  element("tree").hidden = false;
}

async function command(name, verb, headers) {
  const response = await fetch(`/api/v1/supervision/${encodeURIComponent(name)}/${verb}`, {
    method: "POST",
    headers,
  });
  element("tree-problem").textContent = response.ok ? "" : await problemOf(response);
}

showHealth();
setInterval(showHealth, 10000);
