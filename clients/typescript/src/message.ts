/**
 * `Message` and `Attachment`: what an inbox gives.
 *
 * What needs a call is awaited; a value that was fetched once is kept.
 */

import * as answers from "./answers.js";
import { RAW_BYTES } from "./call.js";
import { Refused } from "./errors.js";
import { type PlacedAnswer as Answer, decoded } from "./exchange.js";
import { ofMessage } from "./mailboxes.js";
import {
  AttachmentData,
  type AttachmentJson,
  type Checks,
  MessageData,
  type MessageJson,
} from "./records.js";

/** Asks for something of an inbox. */
export type Ask = (
  method: "GET" | "DELETE",
  path: string,
  more?: { maxBytes?: number },
) => Promise<Answer>;

/** How a list is read. */
export interface ListOptions {
  /** For how long at most, in milliseconds, with all of its pages; 60,000 unless said. */
  timeout?: number | undefined;
  /** How many bytes all of it may have. @internal */
  maxBytes?: number;
  /** Where each message is put as it is read. @internal */
  found?: Message[];
}

/** A message of an inbox. */
export class Message extends MessageData<Attachment> {
  readonly #read: Ask;
  #raw: Promise<Uint8Array> | undefined;

  /** Made by an inbox's calls. */
  constructor(read: Ask, found: MessageJson) {
    super(found, (one) => new Attachment(read, found.id, one));
    this.#read = read;
  }

  /** The message byte for byte as it was accepted. */
  get raw(): Promise<Uint8Array> {
    return (this.#raw ??= this.#bytes().catch((error: unknown) => {
      this.#raw = undefined; // may be asked for again
      throw error;
    }));
  }

  /** Ask whether the world would take it: SPF, DKIM, DMARC, and what readers miss. */
  async checks(): Promise<Checks> {
    const answer = await this.#read("GET", ofMessage(this.id, "/checks"));
    return decoded(answer, answers.CHECKS) as Checks;
  }

  /** Delete it for good; one that is gone already is. */
  async delete(): Promise<void> {
    try {
      await this.#read("DELETE", ofMessage(this.id));
    } catch (error) {
      if (!(error instanceof Refused && error.problem === "message-not-found")) throw error;
    }
  }

  async #bytes(): Promise<Uint8Array> {
    return (await this.#read("GET", ofMessage(this.id, "/raw"), { maxBytes: RAW_BYTES })).bytes;
  }
}

/** A file that a message brought. */
export class Attachment extends AttachmentData {
  readonly #read: () => Promise<Uint8Array>;
  #content: Promise<Uint8Array> | undefined;

  /** One of a message's `attachments`. */
  constructor(read: Ask, messageId: string, found: AttachmentJson) {
    super(found);
    const path = ofMessage(messageId, `/attachments/${found.index}`);
    this.#read = async () => (await read("GET", path, { maxBytes: RAW_BYTES })).bytes;
  }

  /** Its bytes, decoded. */
  get content(): Promise<Uint8Array> {
    return (this.#content ??= this.#read().catch((error: unknown) => {
      this.#content = undefined; // may be asked for again
      throw error;
    }));
  }
}
