/**
 * One session over `WS /v1/realtime/video`: opened, and resumed after a drop.
 *
 * Fires `state` {state, ...detail} when the state or what is to be said about it changes, `session`
 * {fresh, config} when a session begins or goes on, and `message` with each JSON message of the
 * server. Binary messages go to the media source. States: connecting, warming, queued, live,
 * paused, reconnecting, ended, error.
 */

import { Link } from "./link.js";
import { probe } from "./server.js";
import { socketUrl } from "./urls.js";

const PATH = "v1/realtime/video";
const BACKOFF_MS = [0, 300, 700, 1500];
const SPREAD = 0.3; // so that many pages do not come back in the same moment
const WARMING_POLL_MS = 700;
const MAX_REFUSALS = 5; // sockets that closed before a session began, though the server is ready
const FULL_RETRY_S = 10;
const REFUSED = [1003, 1007, 1008, 1009];
const FULL = 1013;
const DONE = 1000;
const NOT_BEGUN = 4900; // ours, never on the wire
const TIME_IS_UP = {
  4000: "Nobody used the stream for a while, so it was stopped.",
  4001: "The stream reached its time limit.",
};

/** Say what follows the end of a link: `retry`, `fresh` (a new session), `ended` or `error`. */
function judge({ code, started, resuming, failure, done, refusals }) {
  const full = failure ? failure.code === "capacity" : code === FULL;
  const transient = full || (failure?.retryable ?? !REFUSED.includes(code));
  const afterMs = (failure?.retry_after_s ?? FULL_RETRY_S) * 1000;
  if (TIME_IS_UP[code]) return { next: "ended", reason: TIME_IS_UP[code] };
  if (full) return { next: "error", reason: failure?.message ?? "The server is full", afterMs };
  if (resuming && !started && !transient) return { next: "fresh" };
  if (!transient) {
    return { next: "error", reason: failure?.message ?? "The server refused the connection" };
  }
  if (done || code === DONE) return { next: "ended", reason: "The stream was ended." };
  if (refusals >= MAX_REFUSALS) {
    const reason = "The video connection does not open; a proxy may be blocking WebSockets";
    return { next: "error", reason };
  }
  return { next: "retry", reason: failure?.message };
}

export class Connection extends EventTarget {
  #opening;
  #media;
  #link = null;
  #attempt = null; // what happened on the present link
  #run = null; // AbortController of the present loop
  #wake = () => {};
  #resumeToken = null;
  #sessionId = null;
  #wasLive = false;

  /**
   * `opening()` gives prompt and settings of a new session; `media` takes its pictures. `signal`
   * ends the listening to the page's own events.
   */
  constructor(opening, media, signal) {
    super();
    this.#opening = opening;
    this.#media = media;
    addEventListener("online", () => this.hurry(), { signal });
    const seen = () => document.hidden || this.hurry();
    document.addEventListener("visibilitychange", seen, { signal });
  }

  /** Take up a session that was forked, with the next `start`. */
  adopt({ session_id, resume_token }) {
    this.#sessionId = session_id;
    this.#resumeToken = resume_token;
  }

  /** Start, or start again; `fresh` forgets the session there was. */
  start({ fresh = false } = {}) {
    this.#run?.abort();
    this.#link?.close();
    this.hurry();
    if (fresh) this.#resumeToken = null;
    this.#run = new AbortController();
    this.#loop(this.#run.signal);
  }

  /** End the session at the server and stop. */
  stop() {
    this.send({ type: "session.stop" });
    this.#run?.abort();
    this.#link?.close();
    this.#resumeToken = null;
  }

  /** Do not wait for the next attempt. */
  hurry() {
    this.#wake();
  }

  /** Send one message; false when there is no session to send it to. */
  send(message) {
    return Boolean(this.#attempt?.started) && this.#link.send(message);
  }

  async #loop(signal) {
    const tries = { failures: 0, refusals: 0 };
    while (!signal.aborted) {
      const server = await probe();
      if (signal.aborted) return;
      if (server.state === "warming") {
        this.#show("warming", { stage: server.stage, progress: server.progress });
        await this.#sleep(WARMING_POLL_MS);
        continue;
      }
      const again = this.#wasLive || tries.failures > 0;
      this.#show(again ? "reconnecting" : "connecting", { ...tries, reason: server.reason });
      const verdict =
        server.state === "ready" ? await this.#once(tries) : { ...server, next: "retry" };
      if (signal.aborted) return;
      if (verdict.next === "fresh") {
        this.#resumeToken = null;
      } else if (verdict.next === "retry") {
        this.#show("reconnecting", { ...tries, reason: verdict.reason });
        const backoff = BACKOFF_MS[Math.min(tries.failures, BACKOFF_MS.length - 1)];
        await this.#sleep(backoff * (1 + SPREAD * Math.random()));
        tries.failures += 1;
      } else {
        this.#show(verdict.next, verdict);
        if (!verdict.afterMs) return;
        await this.#sleep(verdict.afterMs);
      }
    }
  }

  /** Live through one link and judge its end. */
  async #once(tries) {
    const attempt = { started: false, flowing: false, paused: false, failure: null, done: false };
    attempt.resuming = this.#resumeToken !== null;
    this.#attempt = attempt;
    this.#link = new Link(socketUrl(PATH), {
      opened: () => this.#link.send(this.#firstMessage()),
      message: (message) => this.#take(message),
      picture: (buffer) => this.#takePicture(buffer),
    });
    const code = await this.#link.closed;
    if (this.#attempt === attempt) this.#attempt = null;
    if (attempt.started) tries.failures = tries.refusals = 0;
    else if (!attempt.failure) tries.refusals += 1;
    return judge({ ...attempt, code, refusals: tries.refusals });
  }

  #firstMessage() {
    const pictures = { format: this.#media.format, acks: true };
    if (this.#resumeToken) {
      return { type: "session.resume", resume_token: this.#resumeToken, ...pictures };
    }
    return { type: "session.start", ...this.#opening(), ...pictures };
  }

  #take(message) {
    const attempt = this.#attempt;
    if (message.type === "video.start") this.#begin(message);
    else if (message.type === "session.queued") {
      this.#show("queued", { position: message.position, waitS: message.estimated_wait_s });
    } else if (message.type === "session.state") {
      this.#stateChanged(attempt, message.state);
    } else if (message.type === "session.done") {
      attempt.done = true;
    } else if (message.type === "error" && !message.event_id) {
      attempt.failure = message;
    }
    this.dispatchEvent(new CustomEvent("message", { detail: message }));
    // The server would wait for a better first message; the page has none until somebody acts.
    if (attempt.failure && !attempt.started) this.#link.close(NOT_BEGUN);
  }

  #stateChanged(attempt, state) {
    attempt.paused = state === "paused";
    if (state === "queued") this.#show("queued");
    else if (state === "starting" && !attempt.flowing) this.#show("connecting");
    else this.#showFlow();
  }

  #takePicture(buffer) {
    this.#media.receive(buffer);
    this.#attempt.failure = null; // the stream went on after it
    if (this.#attempt.flowing) return;
    this.#attempt.flowing = true;
    this.#wasLive = true;
    this.#showFlow();
  }

  #begin(message) {
    const fresh = message.session_id !== this.#sessionId;
    this.#attempt.started = true;
    this.#attempt.failure = null;
    this.#resumeToken = message.resume_token ?? null;
    this.#sessionId = message.session_id;
    if (fresh) this.#media.restart();
    const detail = { fresh, config: message.config ?? {} };
    this.dispatchEvent(new CustomEvent("session", { detail }));
  }

  #showFlow() {
    if (this.#attempt.paused) this.#show("paused");
    else if (this.#attempt.flowing) this.#show("live");
  }

  #sleep(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  #show(state, detail = {}) {
    this.dispatchEvent(new CustomEvent("state", { detail: { ...detail, state } }));
  }
}
