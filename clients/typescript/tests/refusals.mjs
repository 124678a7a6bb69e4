// Recipients at the relay at RELAY_URL that no inbox has, by SMTP.

import { connect } from "node:net";
import { createInterface } from "node:readline";
import { Relay } from "relay-client";

/**
 * Say these commands, each after the reply to the one before.
 *
 * @param {string[]} commands
 */
async function say(...commands) {
  const { smtp } = await new Relay().info();
  const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(smtp ?? "") ?? [];
  const socket = connect(Number(port), host);
  for await (const line of createInterface(socket)) {
    if (line[3] === "-") continue;
    const next = commands.shift();
    if (next === undefined) socket.end();
    else socket.write(`${next}\r\n`);
  }
}

/**
 * Mail an address that nobody has, and which is another's but for a slip.  Return the address, and
 * what a wait says of it.
 *
 * @param {string} address
 */
export async function mistype(address) {
  const mistyped = address.replace("@", "x@");
  await say("EHLO x", "MAIL FROM:<>", `RCPT TO:<${mistyped}>`, "QUIT");
  return `1 recipient was refused since the inbox was made: ${mistyped} (550 5.1.1 No such mailbox here)`;
}

/**
 * Name a recipient that nobody has, as somebody who has signed in.
 *
 * @param {string} user
 * @param {string} to
 */
export async function refuseAs(user, to) {
  await say("EHLO x", signIn(user), "MAIL FROM:<>", `RCPT TO:<${to}>`, "QUIT");
}

/**
 * Send as somebody who has signed in.
 *
 * @param {string} user
 * @param {string} to
 */
export async function sendAs(user, to) {
  const mail = ["MAIL FROM:<a@shop.example>", `RCPT TO:<${to}>`, "DATA", "Subject: Reset\r\n\r\nx\r\n."];
  await say("EHLO x", signIn(user), ...mail, "QUIT");
}

/** @param {string} user */
const signIn = (user) => `AUTH PLAIN ${Buffer.from(`\0${user}\0secret`).toString("base64")}`;
