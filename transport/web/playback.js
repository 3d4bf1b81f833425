/**
 * One session as the page has it: the control socket and the pictures, which come another way.
 *
 * Fires what the connection fires (`state`, `session`, `message`, `gone`) and what the pictures are about
 * (`frame`, `size`, `using`). Pictures that stay out are a state too: they are fetched anew while
 * the session goes on, and a session is only live when its pictures are seen.
 */

import { Connection } from "./connection.js";
import { Sources } from "./sources.js";

export class Playback extends EventTarget {
  session = null; // {id, token, fps}
  #connection;
  #sources;

  /**
   * `screen` is what the pictures go into, `opening()` gives prompt and settings of a new session;
   * `watched` {id, token} names one that is only watched, or is null; `via` a way for the pictures.
   */
  constructor(screen, opening, { watched, via }, signal) {
    super();
    this.#connection = new Connection(opening, watched, signal);
    this.#sources = new Sources(screen, via, signal);
    this.#join();
    for (const type of ["state", "session", "message", "gone"]) this.#handOn(this.#connection, type);
    for (const type of ["frame", "size", "using"]) this.#handOn(this.#sources, type);
  }

  /** The source in use, or null. */
  get source() {
    return this.#sources.current;
  }

  /** What is on screen, to be drawn; null before the first picture. */
  get picture() {
    return this.#sources.picture;
  }

  start(how) {
    this.#connection.start(how);
  }

  /** Take up a session that was forked, with the next `start`; show `picture` until one comes. */
  adopt(forked, picture) {
    this.#connection.adopt(forked);
    this.#sources.begin(picture);
  }

  stop() {
    this.#connection.stop();
    this.#sources.close();
  }

  /** Send one message; false when there is no session to send it to. */
  send(message) {
    return this.#connection.send(message);
  }

  /** Do not wait for the next attempt. */
  hurry() {
    this.#connection.hurry();
    if (!this.source) this.#sources.retry();
  }

  /** Go on with the pictures after a click. */
  play() {
    this.#connection.interrupted("connecting");
    this.#sources.play();
  }

  /** Let the pictures come by this way. */
  choose(kind) {
    this.#sources.choose(kind);
  }

  #join() {
    this.#connection.addEventListener("session", ({ detail: { id, token, config } }) => {
      this.session = { id, token, fps: config.fps ?? 16 };
      this.#sources.open(this.session);
    });
    this.#connection.addEventListener("gone", () => this.#sources.suspend());
    this.#connection.addEventListener("message", ({ detail }) => this.#sources.heard(detail));
    this.#connection.addEventListener("state", ({ detail: { state } }) => {
      if (state === "ended") this.#sources.close();
    });
    this.#sources.addEventListener("frame", () => this.#connection.flowing());
    this.#sources.addEventListener("blocked", () => this.#connection.interrupted("blocked"));
    this.#sources.addEventListener("lost", ({ detail: reason }) => {
      this.#connection.interrupted("reconnecting", { reason });
    });
    this.#sources.addEventListener("failed", ({ detail: { reason, afterMs } }) => {
      const why = `No picture comes through (${reason.replace(/\.$/, "")})`;
      this.#connection.interrupted("error", { reason: why, afterMs });
    });
  }

  #handOn(target, type) {
    target.addEventListener(type, ({ detail }) => {
      this.dispatchEvent(new CustomEvent(type, { detail }));
    });
  }
}
