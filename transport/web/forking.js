/**
 * Asking for a second session that goes on from this one; one request at a time. Each ends in a
 * second session, or in a word that says why not.
 */

import { newId } from "./prompts.js";

export class Forking {
  full = false; // as many sessions as fit are there
  #asked = null; // {id, atChunk}
  #send;
  #changed;
  #refused;

  /**
   * `send(message)` returns false when nobody is there; `changed()` follows `busy`; `refused(why)`
   * says that there will be no second session.
   */
  constructor(send, changed, refused) {
    this.#send = send;
    this.#changed = changed;
    this.#refused = refused;
  }

  get busy() {
    return this.#asked !== null;
  }

  /** Return why there can be no fork now, or null. */
  obstacle(watching, playing) {
    if (watching) return "only whoever made this video can fork it.";
    if (this.full) return "two videos are as many as this page shows; end one of them first.";
    if (this.busy) return "another fork is on its way.";
    return playing ? null : "the video does not play at present.";
  }

  /** Ask for a fork from here, or from the end of an earlier chunk. */
  ask(atChunk) {
    const message = { type: "session.fork", event_id: newId() };
    if (atChunk !== null) message.at_chunk = atChunk;
    this.#asked = { id: message.event_id, atChunk };
    if (this.#send(message)) this.#changed();
    else this.forget();
  }

  /** No answer will come: the connection on which it was asked is gone. */
  forget() {
    if (!this.busy) return;
    this.#asked = null;
    this.#changed();
    this.#refused("the connection was lost. Try again.");
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
