// What stands where there is no mail yet: how to send the first one here, ready to copy.

import { get, part, send } from "./calls.js";
import { button, copyButton, doing, h, press, problem } from "./dom.js";
import { t, told } from "./strings.js";

// A stranger may have chosen the address that mail is sent to: what is to be copied must not be more
// than a word, to a shell and in a program.
const word = (text) => (/^\w[\w.@+-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

// Lines for each client; `to` is an address, `host` and `port` those of the relay's SMTP.
const SNIPPETS = {
  curl: ({ host, port, to }) => `printf 'From: me@example.com\\r\\nTo: %s\\r\\nSubject: Hello\\r\\n\\r\\nYour code is 482913.\\r\\n' ${word(to)} |\n  curl smtp://${host}:${port} --mail-from me@example.com --mail-rcpt ${word(to)} -T -`,
  swaks: ({ host, port, to }) => `swaks --server ${host}:${port} --from me@example.com --to ${word(to)} --header 'Subject: Hello'`,
  Django: ({ host, port }) => `# settings.py
EMAIL_HOST = "${host}"
EMAIL_PORT = ${port}
EMAIL_USE_TLS = False`,
  Rails: ({ host, port }) => `# config/environments/development.rb
config.action_mailer.delivery_method = :smtp
config.action_mailer.smtp_settings = { address: "${host}", port: ${port} }`,
  Laravel: ({ host, port }) => `# .env
MAIL_MAILER=smtp
MAIL_HOST=${host}
MAIL_PORT=${port}
MAIL_ENCRYPTION=null`,
  Spring: ({ host, port }) => `# application.properties
spring.mail.host=${host}
spring.mail.port=${port}`,
  Go: ({ host, port, to }) => `msg := []byte("Subject: Hello\\r\\n\\r\\nHello\\r\\n")
err := smtp.SendMail("${host}:${port}", nil, "me@example.com", []string{${JSON.stringify(to)}}, msg)`,
  Node: ({ host, port, to }) => `import nodemailer from "nodemailer";
const relay = nodemailer.createTransport({host: "${host}", port: ${port}, ignoreTLS: true});
await relay.sendMail({from: "me@example.com", to: ${JSON.stringify(to)}, subject: "Hello", text: "Hello"});`,
};

// What brings something into a view that is empty, in a terminal.
const COMMANDS = {
  queue: "relay send --from me@example.com --to ann@example.com --subject Hello --text Hello",
  accounts: "relay account create ann@example.com --login ann",
  devices: "relay device keygen >device.json\necho hello | relay device put --to $(python3 -c \"import json; print(json.load(open('device.json'))['public'])\")",
};

const pasted = (text, what) => h("div.snippet-code", h("pre", { tabindex: "0", ariaLabel: t("The lines to copy"), text }), copyButton(text, what));
export const inTerminal = (view) => pasted(COMMANDS[view], t("the command"));

// An IPv6 address in host:port has brackets; bound to all addresses, the page's own host will do.
function parted(place) {
  const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(place ?? "") ?? [];
  if (!port) return null;
  return { host: ["0.0.0.0", "::", ""].includes(host) ? location.hostname : host, port };
}

// `address`: an inbox that mail is to come to, or null.
export function firstMail(address, page, signal) {
  const place = h("section.hello", { ariaLabel: t("Send the first mail") });
  // Who has no credential has an address, and is told no more than where to send to it.
  const info = get(page.who === null ? "quota" : "info", { signal });
  info.then(
    (info) => {
      const at = parted(info.smtp);
      const to = address ?? (info.capture ? "ann@example.com" : `hello@${info.domains[0]}`);
      if (at) place.replaceChildren(...snippets({ ...at, to }, address, info, page));
      else place.replaceChildren(h("p", t("This relay takes no mail over SMTP here.")));
    },
    () => {
      if (signal.aborted) return;
      place.replaceChildren(h("h3", t("Waiting for the first mail")), ...(address ? [h("p", told(t("Send it to {0}."), h("code", address))), testMail(address, page)] : []));
    },
  );
  return place;
}

function snippets(values, address, info, page) {
  const code = h("pre", { tabindex: "0", ariaLabel: t("The lines to copy") });
  const copy = h("span");
  const names = h("div.tabs", { role: "group", ariaLabel: t("Client") });
  const choose = (name, pressed) => {
    const text = SNIPPETS[name](values);
    press(pressed);
    code.textContent = text;
    copy.replaceChildren(copyButton(text, t("the lines for {0}", name)));
  };
  for (const name of Object.keys(SNIPPETS)) names.append(button(name, (pressed) => choose(name, pressed.currentTarget)));
  choose("curl", names.firstChild);
  const what = address
    ? t("What is sent to {1} over SMTP at {0} shows up here at once.")
    : info.capture ? t("Whatever is sent, to any address, over SMTP at {0} shows up here at once.") : t("Make an inbox, and send to it over SMTP at {0}.");
  return [
    h("h3", t("Send the first mail")),
    h("p", told(what, h("code", `${values.host}:${values.port}`), h("code", address ?? ""))),
    names,
    h("div.snippet-code", code, copy),
    (page.who ? page.may("send") : address) ? testMail(address, page) : "",
  ];
}

// One mail of the relay's own; where there is no inbox, one is made for it.
function testMail(address, page) {
  const trouble = problem();
  return h("p", t("Or see one come:"), " ", button(t("Send a test mail"), doing(trouble, async () => {
    const to = address ?? (page.may("read") ? (await send("POST", "mailboxes", {})).address : null);
    await send("POST", `mailboxes/${part(to)}/test-message`);
    if (!address) location.hash = `#/mail/${part(to)}`;
  })), trouble);
}

// Who is not signed in is told how; `form`: takes a token here.
export function howToSignIn(form) {
  const command = "relay open";
  const own = t("Or create an inbox of your own: a disposable address, whose mail only this browser sees.");
  return h("section.hello", { ariaLabel: t("Sign in or make an inbox") },
    h("h2", t("See all mail, or make an inbox")),
    h("p", told(t("To see all the mail of this relay, run {0} where it runs: it opens this page signed in. Or {1}."), h("span", h("code", command), " ", copyButton(command, t("the command"))), form ? t("enter the administrator's token (in run/relay.json of the data directory) or an API key") : h("a", { href: "#/signin", text: t("enter a token") }))),
    form,
    h("p", form ? h("a", { href: "#/mail", text: own }) : own));
}
