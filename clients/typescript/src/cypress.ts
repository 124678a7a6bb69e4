/**
 * Commands for Cypress; registered when this is imported (in `cypress/support/e2e`).
 *
 *     cy.relayInbox().then((inbox) => cy.get("#email").type(inbox.address));
 *     cy.waitForMail({ subject: "Welcome" }).then((mail) => cy.visit(mail.link("/activate")));
 *
 * Promises: calls are made by `cy.request`, so by Cypress and not by the page: no rule of the
 * browser's about other origins is in the way, and nothing has to be set up in Node.js.  The relay
 * is at `RELAY_URL` and opened by `RELAY_TOKEN`, both Cypress's environment variables.  An inbox
 * ends with its test.
 *
 * Fails as the client does: `cy.waitForMail()` says what did come, and what fails for want of a
 * relay names the variables.  A relay that is away is asked again only as often as `cy.request`
 * does it.
 *
 * Nothing of Cypress is imported: it puts `Cypress` and `cy` there itself.
 */

import { CAPTURED, INBOX, INFO, LIST, MESSAGE_OR_NONE, REJECTED } from "./answers.js";
import { REPLY, RETRYABLE_STATUSES, type Shape, refused, unlike } from "./call.js";
import { hide, type Refused } from "./errors.js";
import {
  FIXTURE_TTL,
  type InboxOptions,
  type Says,
  newMailbox,
  pathOf,
  reworded,
  saysOf,
  saysOfNew,
} from "./mailboxes.js";
import { DEFAULT_URL, target, whereFrom } from "./options.js";
import {
  AttachmentData,
  type CapturedJson,
  type EntryJson,
  type InfoJson,
  MessageData,
  type MessageJson,
  type RejectedJson,
} from "./records.js";
import type { components } from "./schema.js";
import {
  BY_KEY,
  LOOKS_THROUGH,
  NO_TOKEN,
  OTHERS,
  PART,
  TIMEOUT,
  type WaitOptions,
  administrators,
  areParsed,
  waitQuery,
  fits,
  inVain,
  inWords,
  isCaptured,
  pauses,
  unmade,
  waitable,
} from "./waiting.js";

/** An inbox, as Cypress hands it on. */
export interface CypressInbox {
  address: string;
  /** What opens an anonymous inbox; null where the token does. */
  sessionToken: string | null;
  /** When it ends: the plan may allow less than was asked for. */
  expiresAt: Date;
}

export interface CypressWaitOptions extends WaitOptions {
  /** The inbox to wait at; the last one that the test has made unless said. */
  inbox?: Pick<CypressInbox, "address" | "sessionToken">;
}

declare global {
  namespace Cypress {
    // What is not used here has to be there, or it is another interface than Cypress's.
    // eslint-disable-next-line @typescript-eslint/no-unused-vars
    interface Chainable<Subject = any> {
      /** Make an inbox for this test; without a `ttl` it lives for an hour at most. */
      relayInbox(options?: InboxOptions): Chainable<CypressInbox>;
      /** Wait for the oldest message that matches. */
      waitForMail(options?: CypressWaitOptions): Chainable<MessageData>;
    }
  }
}

// The part of Cypress that is used here.
interface Chain<T> {
  then<U>(next: (value: T) => Chain<U>): Chain<U>;
}
interface Response {
  status: number;
  body: unknown;
  headers: Record<string, string | string[]>;
}
interface Commands {
  env?(names: string[], options: { log: boolean }): Chain<Settings>;
  on?(event: "fail", listener: (error: Error) => never): void;
  off?(event: "fail", listener: (error: Error) => never): void;
  request(request: {
    method: string;
    url: string;
    headers: Record<string, string>;
    qs?: Record<string, string | number>;
    body?: object;
    timeout: number;
    failOnStatusCode: boolean;
    followRedirect: boolean;
    log: boolean;
  }): Chain<Response>;
  wait(milliseconds: number, options: { log: boolean }): Chain<unknown>;
  wrap<T>(value: T, options: { log: boolean }): Chain<T>;
}
interface Runner {
  Commands: { add(name: string, command: (options?: never) => unknown): void };
  env?(name: string): unknown;
}
type Settings = Record<string, string | null | undefined>;

const {
  Cypress: runner,
  cy,
  afterEach,
} = globalThis as unknown as {
  Cypress: Runner;
  cy: Commands;
  afterEach(hook: () => unknown): void;
};

const QUIET = { log: false };
const PAUSE = 500; // between two tries
const LOOK = 100; // between two looks at what is being parsed
const LOOKS = 10;

const WHERE = whereFrom(
  "Cypress's variables RELAY_URL and RELAY_TOKEN (CYPRESS_RELAY_URL in a shell)",
);

/** To a request that gets no answer, which Cypress lets nobody catch. */
function explain(error: Error): never {
  error.message += `\n${WHERE}`;
  throw error; // or the test would not fail
}

let made: CypressInbox[] = [];

/** Where the relay is, and what opens it. */
function settings(): Chain<Settings> {
  const names = ["RELAY_URL", "RELAY_TOKEN"];
  if (cy.env) return cy.env(names, QUIET);
  const found = names.map((name) => [name, runner.env?.(name) as string | undefined] as const);
  return cy.wrap(Object.fromEntries(found), QUIET);
}

interface CypressRequest {
  method: "GET" | "POST" | "DELETE";
  path: string;
  inbox?: CypressWaitOptions["inbox"];
  says?: Says;
  qs?: Record<string, string | number>;
  body?: object;
  longPoll?: number;
  /** What a good answer is like. */
  shape?: Shape;
  /** When to give up, of `Date.now()`. */
  deadline: number;
}

/**
 * Make a call; where it fails and there is an `otherwise`, that is its answer, and where there is no
 * such mailbox, what `notThere` gives.
 */
function call<T>(
  {
    method,
    path,
    inbox,
    says = inbox && saysOf(inbox),
    qs,
    body,
    longPoll = 0,
    shape = () => true,
    deadline,
  }: CypressRequest,
  otherwise?: T,
  notThere?: (error: Refused) => Chain<T>,
): Chain<T> {
  return settings().then((set) => {
    const { url, token } = target(
      { url: set.RELAY_URL || DEFAULT_URL, token: set.RELAY_TOKEN ?? null },
      "RELAY_URL",
    );
    const once = (): Chain<T> => {
      cy.on?.("fail", explain);
      return cy
        .request({
          method,
          url: `${url.replace(/\/+$/, "")}${path}`,
          headers: {
            Accept: "application/json",
            ...(token && { Authorization: `Bearer ${token}` }),
            ...(inbox?.sessionToken && { "X-Session-Token": inbox.sessionToken }),
          },
          ...(qs && { qs }),
          ...(body && { body }),
          timeout: REPLY + longPoll,
          failOnStatusCode: false,
          followRedirect: false,
          log: false,
        })
        .then((response) => {
          cy.off?.("fail", explain);
          // What cannot be ended ends with its time; a hook that fails would skip all other tests.
          if (method === "DELETE") return cy.wrap(undefined as T, QUIET);
          const isJson = typeof response.body !== "string";
          const good = response.status < 300;
          if (good && isJson && shape(response.body)) return cy.wrap(response.body as T, QUIET);
          const retryable = method !== "POST" && RETRYABLE_STATUSES.has(response.status);
          if (retryable && Date.now() + PAUSE < deadline) {
            return cy.wait(PAUSE, QUIET).then(once);
          }
          if (otherwise !== undefined) return cy.wrap(otherwise, QUIET);
          const said = isJson ? JSON.stringify(response.body) : String(response.body);
          const leads = response.headers.location;
          const answer = {
            status: response.status,
            headers: new Headers(typeof leads === "string" ? { Location: leads } : {}),
            bytes: new TextEncoder().encode(said),
          };
          const error = good ? unlike(answer) : reworded(refused(answer), says);
          if (notThere && error.problem === "mailbox-not-found") return notThere(error);
          if (error.status === 401 || error.problem === "unknown") explain(error);
          throw error;
        });
    };
    return once();
  });
}

function relayInbox({ ttl = FIXTURE_TTL, ...wanted }: InboxOptions = {}): Chain<CypressInbox> {
  return call<components["schemas"]["CreatedMailbox"]>({
    method: "POST",
    path: "/api/v1/mailboxes",
    body: newMailbox({ ttl, ...wanted }),
    says: saysOfNew(wanted),
    shape: INBOX,
    deadline: Date.now() + REPLY,
  }).then(({ address, session_token: sessionToken, expires_at: at }) => {
    const inbox = { address, sessionToken, expiresAt: new Date(at) };
    hide(inbox, "sessionToken");
    made.push(inbox);
    return cy.wrap(inbox, QUIET);
  });
}

function waitForMail({
  inbox = made.at(-1),
  ...wanted
}: CypressWaitOptions = {}): Chain<MessageData> {
  if (!inbox) throw new Error("there is no inbox to wait at: call cy.relayInbox() first");
  const at = inbox;
  const timeout = waitable(wanted.timeout ?? TIMEOUT);
  const deadline = Date.now() + timeout;
  let later: WaitOptions = wanted; // than what came and does not fit
  const pauseAfter = pauses();
  /** What there is of this inbox; where the relay does not say it, nothing. */
  const also = <T>(path: string, shape: Shape, qs?: { login: string }): Chain<T[]> =>
    call<T[]>(
      {
        method: "GET",
        path: `${pathOf(at.address)}${path}`,
        inbox: at,
        ...(qs && { qs }),
        shape,
        deadline,
      },
      [],
    );
  /** Whether the relay captures, and an address of no domain of its own; whether a key asks. */
  const capture = (): Chain<{ captures: boolean; elsewhere: boolean; byKey: boolean }> =>
    settings().then(({ RELAY_TOKEN: token }) =>
      call<Pick<InfoJson, "capture" | "domains">>(
        { method: "GET", path: "/api/v1/info", shape: INFO, deadline },
        { capture: false, domains: [] },
      ).then((info) => {
        const elsewhere = isCaptured(at.address, info);
        return cy.wrap({ captures: info.capture, elsewhere, byKey: token?.startsWith("rk_") ?? false }, QUIET);
      }),
    );
  /** To whom the relay does not tell of mail that it may have captured. */
  const untold = (): Chain<string> =>
    settings().then(({ RELAY_TOKEN: token }) =>
      token?.startsWith("rk_")
        ? capture().then(({ captures }) => cy.wrap(captures ? BY_KEY : "", QUIET))
        : cy.wrap(token ? "" : NO_TOKEN, QUIET),
    );
  /** Of a mailbox that its first mail makes, nothing; which is so for the administrator alone. */
  const expected = <T>(nothing: T) => (error: Refused): Chain<T> => {
    if (at.sessionToken) throw error;
    return capture().then(({ elsewhere, byKey }) => {
      if (!elsewhere) throw error;
      if (!byKey) return cy.wrap(nothing, QUIET);
      throw administrators(error);
    });
  };
  const late = (looks: number): Chain<never> =>
    call<EntryJson[] | null>(
      {
        method: "GET",
        path: `${pathOf(at.address)}/messages`,
        inbox: at,
        qs: { limit: OTHERS + 1 },
        shape: LIST,
        deadline,
      },
      undefined,
      expected(null),
    ).then((others) => {
      if (others === null) {
        throw unmade(inWords(wanted), timeout);
      }
      if (looks > 0 && !areParsed(others)) return cy.wait(LOOK, QUIET).then(() => late(looks - 1));
      // What is nearly the address, and not what tests beside this one mistyped.
      return also<RejectedJson>("/refused", REJECTED, { login: "" }).then((rejected) =>
        also<CapturedJson>("/captured", CAPTURED).then((captured) => {
          const vain = (to: string): never => {
            throw inVain(inWords(wanted), timeout, others, [], rejected, captured, to);
          };
          return others.length > 0 ? vain("") : untold().then(vain);
        }),
      );
    });
  const next = (): Chain<MessageData> => {
    const began = Date.now();
    const part = Math.min(PART, Math.max(0, deadline - Date.now()));
    return call<MessageJson | null>(
      {
        method: "GET",
        path: `${pathOf(at.address)}/messages/wait`,
        inbox: at,
        qs: waitQuery(later, part),
        longPoll: part,
        shape: MESSAGE_OR_NONE,
        deadline,
      },
      undefined,
      expected(null),
    ).then((found) => {
      if (found && !fits(wanted, found) && Date.now() < deadline + LOOKS_THROUGH) {
        later = { ...later, after: found.id };
        return next();
      }
      if (found && fits(wanted, found)) {
        return cy.wrap(new MessageData(found, (one) => new AttachmentData(one)), QUIET);
      }
      const now = Date.now();
      if (now < deadline) return cy.wait(pauseAfter(now - began, deadline - began), QUIET).then(next);
      return late(LOOKS);
    });
  };
  return next();
}

runner.Commands.add("relayInbox", relayInbox);
runner.Commands.add("waitForMail", waitForMail);

afterEach(() => {
  const ended = made;
  made = [];
  for (const inbox of ended) {
    call({ method: "DELETE", path: pathOf(inbox.address), inbox, deadline: 0 });
  }
});
