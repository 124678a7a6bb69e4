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
 * What came to the inbox of a test that failed, and to those that it has made itself and not closed,
 * is printed beside its failure.  A test that finds no relay, or waits in vain, says so before
 * Vitest ends it, which says no more than that it took long.  Where no relay answers, a run waits
 * for it once.
 */

import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { isMainThread } from "node:worker_threads";
import { test as base } from "vitest";
import { type Away, awayIn } from "./away.js";
import {
  type FixtureInboxOptions,
  type SmtpServer,
  arrivedAtEach,
  inboxOf,
  limitWaits,
  smtpServerOf,
  spared,
} from "./fixtures.js";
import type { Inbox } from "./inbox.js";
import type { RelayOptions } from "./options.js";
import { Relay } from "./relay.js";
import { inALine } from "./text.js";

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
  task: {
    name: string;
    timeout?: number;
    result?: { state: string; hooks?: { beforeEach?: string } } | undefined;
  };
}

const ENDS = 5_000; // milliseconds after which Vitest ends a test; older ones do not say

/**
 * Says from now on how many milliseconds a test has for what it is about to ask: what is left of
 * its time, but for a margin in which it can still say what was asked for.  As much as it pleases
 * after its end, and where nothing ends it.  What a hook before it has used is not the test's.
 */
function timeLimit(task: Context["task"]): () => number | undefined {
  const whole = task.timeout ?? ENDS;
  const isBefore = task.result?.hooks?.beforeEach === "run";
  const began = performance.now();
  return () => {
    if (!(whole > 0 && whole < Infinity) || task.result?.state !== "run") return undefined;
    const used = isBefore ? 0 : performance.now() - began;
    const left = used < whole ? whole - used : whole; // or it would have been ended
    return spared(left);
  };
}

/**
 * What the files of a run know, each of which has a process or a thread of its own: where tools
 * leave what they may lose.  A run is known by Vitest's own process, whose child or thread this is.
 */
function awayFrom(folder: string): Away {
  const modules = join(folder, "node_modules");
  if (existsSync(modules)) {
    const run = isMainThread ? process.ppid : process.pid;
    return awayIn(join(modules, ".cache", "relay-client", "away.json"), String(run));
  }
  const above = dirname(folder);
  return above === folder ? new Map() : awayFrom(above);
}

const AWAY = awayFrom(process.cwd());

/** Print what came to inboxes, if the test has failed. */
async function report(inboxes: Iterable<Inbox>, task: Context["task"]): Promise<void> {
  if (task.result?.state !== "fail") return;
  for (const { inbox, text } of await arrivedAtEach(inboxes)) {
    console.error(`Mail to ${inALine(inbox.address)}\n\n${text}`);
  }
}

type Use<T> = (value: T) => Promise<void>;

/** For a `test` of your own: `base.extend(fixtures)`. */
export const fixtures = {
  relayOptions: {} as RelayOptions,
  inboxOptions: {} as RelayFixtures["inboxOptions"],

  relay: async (
    { relayOptions, task }: { relayOptions: RelayOptions } & Context,
    use: Use<Relay>,
  ): Promise<void> => {
    const relay = new Relay(relayOptions);
    const made = new Set<Inbox>();
    Object.assign(relay.setByFixture, { timeLimit: timeLimit(task), openInboxes: made });
    await use(relay);
    await report(made, task);
    await relay.close();
  },

  inbox: async (
    { relay, inboxOptions, task }: Pick<RelayFixtures, "relay" | "inboxOptions"> & Context,
    use: Use<Inbox>,
  ): Promise<void> => {
    const left = relay.setByFixture.timeLimit ?? timeLimit(task);
    const inbox = await inboxOf(relay, inboxOptions, task.name, AWAY);
    limitWaits(inbox, left);
    await use(inbox);
    await report([inbox], task);
    if (!inboxOptions.keep) await inbox.close();
  },

  smtpServer: async (
    { relay, task }: { relay: Relay } & Context,
    use: Use<SmtpServer>,
  ): Promise<void> => {
    await use(await smtpServerOf(relay, task.name, AWAY));
  },
};

/** Vitest's `test`, with the fixtures. */
export const test = base.extend<RelayFixtures>(fixtures);
export { test as it };
