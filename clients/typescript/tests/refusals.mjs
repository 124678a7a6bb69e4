// Recipients that the relay at RELAY_URL refuses.

import { once } from "node:events";
import { connect } from "node:net";
import { Relay } from "relay-client";

/**
 * Mail an address that nobody has, and which is another's but for a slip.  Return the address, and
 * what a wait says of it.
 *
 * @param {string} address
 */
export async function mistype(address) {
  const mistyped = address.replace("@", "x@");
  const { smtp } = await new Relay().info();
  const [, host, port] = /^\[?(.*?)\]?:(\d+)$/.exec(smtp ?? "") ?? [];
  const socket = connect(Number(port), host);
  socket.end(`EHLO x\r\nMAIL FROM:<>\r\nRCPT TO:<${mistyped}>\r\nQUIT\r\n`);
  socket.resume();
  await once(socket, "close");
  return `1 recipient was refused since the inbox was made: ${mistyped} (550 5.1.1 No such mailbox here)`;
}
