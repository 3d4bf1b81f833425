/**
 * Asking for a second session that goes on from this one; one request at a time.
 */

import { newId } from "./prompts.js";

export class Forking {
  #asked = null; // {id, atChunk}
  #send;
  #changed;

  /** `send(message)` returns false when nobody is there; `changed()` follows `busy`. */
  constructor(send, changed) {
    this.#send = send;
    this.#changed = changed;
  }

  get busy() {
    return this.#asked !== null;
  }

  /** Ask for a fork from here, or from the end of an earlier chunk. */
  ask(atChunk) {
    const message = { type: "session.fork", event_id: newId() };
    if (atChunk !== null) message.at_chunk = atChunk;
    if (this.#send(message)) this.#asked = { id: message.event_id, atChunk };
    this.#changed();
  }

  /** No answer will come. */
  forget() {
    this.#asked = null;
  }

  /** If `message` is the answer, return what it was asked with {atChunk}, else null. */
  answered({ event_id: id }) {
    const asked = this.#asked;
    if (!id || id !== asked?.id) return null;
    this.#asked = null;
    this.#changed();
    return asked;
  }
}
