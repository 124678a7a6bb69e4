/**
 * A client of Relay: inboxes for tests, and mail that is waited for.
 *
 *     import { Relay } from "relay-client";
 *
 *     const relay = new Relay();
 *     await using inbox = await relay.inbox();
 *     await signUp(inbox.address);
 *     assert.equal((await inbox.wait({ subject: "Welcome" })).code, "123456");
 *
 * Times are milliseconds, an inbox's `ttl` minutes.  Failures are `RelayError`s.
 */

export {
  NoSuchLink,
  NotDelivered,
  Refused,
  RelayError,
  UnexpectedMail,
  Unreachable,
  WaitTimeout,
} from "./errors.js";
export { Inbox } from "./inbox.js";
export type { InboxOptions } from "./mailboxes.js";
export { Attachment, type ListOptions, Message } from "./message.js";
export type { RelayOptions } from "./options.js";
export type {
  AttachmentData,
  Check,
  Checks,
  Finding,
  Info,
  MessageData,
  MessageHeaders,
  OutboundEntry,
  State,
} from "./records.js";
export { Relay } from "./relay.js";
export type { components, operations, paths } from "./schema.js";
export { type NewAttachment, type NewMessage, Outbound } from "./sending.js";
export { VERSION } from "./version.js";
export type { WaitOptions, Wanted } from "./wanted.js";
