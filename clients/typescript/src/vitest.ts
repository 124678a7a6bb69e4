/**
 * Fixtures for Vitest: a fresh inbox for each test.
 *
 *     import { test } from "relay-client/vitest";
 *
 * | fixture | is |
 * |---|---|
 * | `inbox` | an inbox of this test alone, which ends with it |
 * | `smtpServer` | where the application is to send; asks for a token |
 * | `relay` | the client |
 * | `inboxOptions`, `relayOptions` | what these are made with: `base.extend({ ...fixtures, … })` |
 *
 * What came to the inbox of a test that failed is printed beside its failure.
 */

import { test as base } from "vitest";
import type { RelayOptions } from "./exchange.js";
import {
  type FixtureInboxOptions,
  type SmtpServer,
  arrivedAt,
  inboxOf,
  smtpServerOf,
} from "./fixtures.js";
import { type Inbox, Relay } from "./relay.js";
import { inALine } from "./text.js";
import { TIMEOUT } from "./waiting.js";

export { expect } from "vitest";
export type { SmtpServer };

/** What each test is given. */
export interface RelayFixtures {
  relay: Relay;
  /** Where the relay is; `RELAY_URL` and `RELAY_TOKEN` unless said. */
  relayOptions: RelayOptions;
  inbox: Inbox;
  /** What inbox is wanted; with `keep` it is left, to be looked at on the relay's page. */
  inboxOptions: FixtureInboxOptions;
  smtpServer: SmtpServer;
}

/** The part of a test's context that is used here. */
interface Context {
  task: { name: string; timeout?: number; result?: { state: string } | undefined };
}

const ENDS = 5_000; // milliseconds after which Vitest ends a test; older ones do not say
const MARGIN = 1_000; // for what else a test does

/** For how long a test's inbox waits: its failure says what was waited for if that is less. */
function patience({ timeout = ENDS }: Context["task"]): number {
  return timeout > 0 ? Math.min(TIMEOUT, Math.max(timeout - MARGIN, timeout / 2)) : TIMEOUT;
}

type Use<T> = (value: T) => Promise<void>;

/** For a `test` of your own: `base.extend(fixtures)`. */
export const fixtures = {
  relayOptions: {} as RelayOptions,
  inboxOptions: {} as RelayFixtures["inboxOptions"],

  relay: async (
    { relayOptions }: { relayOptions: RelayOptions },
    use: Use<Relay>,
  ): Promise<void> => {
    const relay = new Relay(relayOptions);
    await use(relay);
    await relay.close();
  },

  inbox: async (
    { relay, inboxOptions, task }: Pick<RelayFixtures, "relay" | "inboxOptions"> & Context,
    use: Use<Inbox>,
  ): Promise<void> => {
    const inbox = await inboxOf(relay, inboxOptions, task.name);
    inbox.timeout = patience(task);
    await use(inbox);
    if (task.result?.state === "fail") {
      console.error(`Mail to ${inALine(inbox.address)}\n\n${(await arrivedAt(inbox)).text}`);
    }
    if (!inboxOptions.keep) await inbox.close();
  },

  smtpServer: async (
    { relay, task }: { relay: Relay } & Context,
    use: Use<SmtpServer>,
  ): Promise<void> => {
    await use(await smtpServerOf(relay, task.name));
  },
};

/** Vitest's `test`, with the fixtures. */
export const test = base.extend<RelayFixtures>(fixtures);
export { test as it };
