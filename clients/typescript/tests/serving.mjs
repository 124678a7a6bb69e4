// Servers that say what a test wants said, and what a relay says.

import { once } from "node:events";
import { createServer } from "node:http";
import { Relay } from "relay-client";

export const MESSAGE = {
  id: "1",
  from_address: null,
  to: "a@b",
  subject: null,
  received_at: "2026-01-01T00:00:00Z",
  size: 1,
  body_text: null,
  body_html: null,
  otp: null,
  links: [],
  headers: {},
  attachments: [],
};

export const INFO = {
  version: "1",
  smtp: null,
  submission: null,
  domains: [],
  capture: false,
  starttls: false,
  public_url: "http://relay.example",
};

/** @param {import("node:net").Server} server */
export const portOf = (server) => /** @type {import("node:net").AddressInfo} */ (server.address()).port;

/**
 * @param {import("node:http").RequestListener} serve
 * @param {(client: Relay, url: string) => Promise<void>} body
 */
export async function serving(serve, body) {
  const server = createServer(serve).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${portOf(server)}`;
  const client = new Relay({ url, token: "rk_secret" });
  try {
    await body(client, url);
  } finally {
    await client.close();
    server.close();
    server.closeAllConnections();
  }
}
