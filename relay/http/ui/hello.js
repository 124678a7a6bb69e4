// What stands where there is no mail yet: how to send the first one here, ready to copy.

import { get } from "/ui/calls.js";
import { button, copyButton, h } from "/ui/dom.js";

// A stranger may have chosen the address that mail is sent to: what is to be copied must not be more
// than a word, to a shell and in a program.
const word = (text) => (/^\w[\w.@+-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// Lines for each client; `to` is an address, `host` and `port` those of the relay's SMTP.
const SNIPPETS = {
  curl: ({ host, port, to }) => `printf 'From: me@example.com\\nTo: %s\\nSubject: Hello\\n\\nYour code is 482913.\\n' ${word(to)} |
  curl smtp://${host}:${port} --mail-from me@example.com --mail-rcpt ${word(to)} -T -`,
  swaks: ({ host, port, to }) => `swaks --server ${host}:${port} --from me@example.com --to ${word(to)} --header 'Subject: Hello'`,
  Django: ({ host, port }) => `# settings.py
EMAIL_HOST = "${host}"
EMAIL_PORT = ${port}
EMAIL_USE_TLS = False`,
  Nodemailer: ({ host, port, to }) => `import nodemailer from "nodemailer";
const relay = nodemailer.createTransport({ host: "${host}", port: ${port}, ignoreTLS: true });
await relay.sendMail({ from: "me@example.com", to: ${JSON.stringify(to)}, subject: "Hello", text: "Hello" });`,
};

// An IPv6 address in host:port has brackets; bound to all addresses, the page's own host will do.
function parted(place) {
  const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(place ?? "") ?? [];
  if (!port) return null;
  return { host: ["0.0.0.0", "::", ""].includes(host) ? location.hostname : host, port };
}

// `address`: an inbox that mail is to come to, or null.
export function firstMail(address, page, signal) {
  const place = h("section", { class: "hello", "aria-label": "Send the first mail" });
  // Only a credential is told the ports; for others what anybody may know has to do.
  const info = page.who === null ? Promise.reject(new Error("signed out")) : get("/api/v1/info", { signal });
  info.then(
    (info) => {
      const at = parted(info.smtp);
      const to = address ?? (info.capture ? "ann@example.com" : `hello@${info.domains[0]}`);
      if (at) place.replaceChildren(...snippets({ ...at, to }, address, info));
      else place.replaceChildren(h("p", { text: "This relay takes no mail over SMTP here." }));
    },
    () => {
      if (signal.aborted) return;
      place.replaceChildren(h("h3", { text: "Waiting for the first mail" }), ...(address ? [h("p", {}, "Send it to ", h("code", { text: address }), ".")] : []));
    },
  );
  return place;
}

function snippets(values, address, info) {
  const code = h("pre", { tabindex: "0", "aria-label": "The lines to copy" });
  const copy = h("span");
  const names = h("div", { role: "group", "aria-label": "Client", class: "tabs" });
  const choose = (name, pressed) => {
    const text = SNIPPETS[name](values);
    for (const other of names.children) other.ariaPressed = String(other === pressed);
    code.textContent = text;
    copy.replaceChildren(copyButton(text, `the lines for ${name}`));
  };
  for (const name of Object.keys(SNIPPETS)) names.append(button(name, (pressed) => choose(name, pressed.currentTarget)));
  choose("curl", names.firstChild);
  const what = address
    ? ["What is sent to ", h("code", { text: address }), " over SMTP at "]
    : info.capture ? ["Whatever is sent, to any address, over SMTP at "] : [`Make an inbox, and send to it over SMTP at `];
  return [
    h("h3", { text: "Send the first mail" }),
    h("p", {}, ...what, h("code", { text: `${values.host}:${values.port}` }), address || info.capture ? " shows up here at once." : "."),
    names,
    h("div", { class: "snippet-code" }, code, copy),
  ];
}

// Who is not signed in is told how.
export function howToSignIn() {
  const command = "relay open";
  return h("section", { class: "hello", "aria-label": "Sign in or make an inbox" },
    h("h3", { text: "See all mail, or make an inbox" }),
    h("p", {}, "To see all the mail of this relay, run ", h("code", { text: command }), " ", copyButton(command, "the command"), " where it runs: it opens this page signed in. Or ", h("a", { href: "#/signin", text: "enter a token" }), "."),
    h("p", { text: "Or create an inbox of your own: a disposable address, whose mail only this browser sees." }));
}
