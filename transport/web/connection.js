/**
 * The control socket of one session: opened, and resumed after a drop. No pictures come over it.
 *
 * Fires `state` {state, ...detail} when the state or what is to be said about it changes, `session`
 * {fresh, id, token, config} when a session begins or goes on, `gone` when the socket is, and
 * `message` with each message of the server. States: connecting, warming, queued, live, paused,
 * blocked, reconnecting, ended, error.
 */

import { Link } from "./link.js";
import { probe } from "./server.js";
import { sessionPath, socketUrl } from "./urls.js";

const PATH = "v1/realtime/video";
const BACKOFF_MS = [0, 300, 700, 1500];
const SPREAD = 0.3; // so that many pages do not come back in the same moment
const WARMING_POLL_MS = 700;
const MAX_REFUSALS = 5; // sockets that closed before a session began, though the server is ready
const FULL_RETRY_S = 10;
const REFUSED = [1003, 1007, 1008, 1009];
const FULL = 1013;
const OUTLIVED_MS = 3000; // an error that did not end the stream by then did not end it at all
const DONE = 1000;
const NOT_BEGUN = 4900; // ours, never on the wire
const TIME_IS_UP = {
  4000: "Nobody used the stream for a while, so it was stopped.",
  4001: "The stream reached its time limit.",
};
const OVER = "This video is over.";
const BAD_LINK = "This link does not let anybody watch; ask for a new one";

/** Say what follows the end of a link: `retry`, `fresh` (a new session), `ended` or `error`. */
function judge({ code, started, resuming, watching, failure, done, refusals }) {
  const full = failure ? failure.code === "capacity" : code === FULL;
  const transient = full || (failure?.retryable ?? !REFUSED.includes(code));
  const afterMs = (failure?.retry_after_s ?? FULL_RETRY_S) * 1000;
  if (TIME_IS_UP[code]) return { next: "ended", reason: TIME_IS_UP[code] };
  if (full) return { next: "error", reason: failure?.message ?? "The server is full", afterMs };
  if (resuming && !started && !transient) return { next: "fresh" };
  if (watching && failure?.code === "not_found") return { next: "ended", reason: OVER };
  if (watching && !started && !transient && failure) return { next: "error", reason: BAD_LINK };
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
  #watched; // {id, token} of a session that is only watched, or null
  #link = null;
  #attempt = null; // what happened on the present link
  #run = null; // AbortController of the present loop
  #wake = () => {};
  #resumeToken = null;
  #sessionId = null;
  #wasLive = false;

  /**
   * `opening()` gives prompt and settings of a new session; `watched` {id, token} names one that is
   * only watched, else it is null. `signal` ends the listening to the page's own events.
   */
  constructor(opening, watched, signal) {
    super();
    this.#opening = opening;
    this.#watched = watched;
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
    if (!this.#watched) this.send({ type: "session.stop" });
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

  /** A picture was seen. */
  flowing() {
    const attempt = this.#attempt;
    if (!attempt?.started || attempt.flowing) return;
    attempt.flowing = true;
    this.#wasLive = true;
    this.#showFlow();
  }

  /** No pictures come at present: show `state`, one of those above, until some do. */
  interrupted(state, detail = {}) {
    if (!this.#attempt?.started) return;
    this.#attempt.flowing = false;
    if (!this.#attempt.paused || state !== "reconnecting") this.#show(state, detail);
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
    attempt.watching = this.#watched !== null;
    this.#attempt = attempt;
    const path = this.#watched ? sessionPath(this.#watched.id, "view") : PATH;
    this.#link = new Link(socketUrl(path), {
      opened: () => this.#link.send(this.#firstMessage()),
      message: (message) => this.#take(message),
      picture: () => {}, // none are asked for
    });
    const code = await this.#link.closed;
    if (this.#attempt === attempt) {
      this.#attempt = null;
      this.dispatchEvent(new CustomEvent("gone"));
    }
    if (performance.now() - attempt.failedAt > OUTLIVED_MS) attempt.failure = null;
    if (attempt.started) tries.failures = tries.refusals = 0;
    else if (!attempt.failure) tries.refusals += 1;
    return judge({ ...attempt, code, refusals: tries.refusals });
  }

  #firstMessage() {
    const format = "none";
    if (this.#watched) {
      return { type: "session.view", viewer_token: this.#watched.token, format };
    }
    if (this.#resumeToken) {
      return { type: "session.resume", resume_token: this.#resumeToken, format };
    }
    return { type: "session.start", ...this.#opening(), format };
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
      attempt.failedAt = performance.now();
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

  #begin(message) {
    const fresh = message.session_id !== this.#sessionId;
    this.#attempt.started = true;
    this.#attempt.failure = null;
    this.#resumeToken = message.resume_token ?? null;
    this.#sessionId = message.session_id;
    const id = message.session_id;
    const token = this.#watched?.token ?? message.viewer_token;
    const detail = { fresh, id, token, config: message.config ?? {} };
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
