/**
 * Which way the pictures come: WebRTC first, and whatever else works after it.
 *
 * A way that fails before it showed a picture is given up for the next one; one that had worked is
 * tried again first. The session is the control socket's affair and is never touched here. Fires
 * `frame` and `size` of the source in use, `using` {kind, label}, `lost` with a reason when
 * pictures have to be fetched anew, `blocked` when a click is needed, and `failed` {reason, afterMs}
 * when nothing worked.
 */

import { JpegSource } from "./jpeg.js";
import { MjpegSource } from "./mjpeg.js";
import { MseSource } from "./mse.js";
import { still } from "./picture.js";
import { WebCodecsSource } from "./webcodecs.js";
import { WebRtcSource } from "./webrtc.js";

const ALL = [WebRtcSource, WebCodecsSource, MseSource, JpegSource, MjpegSource];
const GIVE_UP_MS = 4000; // without a connection, or with frames announced and none seen
const AGAIN_MS = 300; // a source often ends shortly before its session does
const NEXT_MS = 30;
const EXHAUSTED_MS = 10_000;
const CHECK_MS = 250;
const HANDED_ON = ["size", "blocked"];

/** Every way there is, best first: [{kind, label, usable}]. */
export const WAYS = ALL.map(({ kind, label, usable }) => ({ kind, label, usable }));

export class Sources extends EventTarget {
  #screen;
  #kinds = ALL.filter(({ usable }) => usable);
  #at = 0; // the kind in use
  #source = null;
  #session = null; // {id, token, fps}
  #online = false; // the control socket has the session
  #announcement = null; // of the newest chunk
  #moving = true; // not paused, so that pictures are to be expected
  #waiting = false; // in the server's queue
  #worked = false;
  #failures = 0; // in a row
  #startedAt = 0;
  #isOpen = false;
  #expectedAt = null; // when a picture was announced that was not seen yet
  #blocked = false;
  #timer = null;

  /** `wanted` names the way to try first, or is null; `signal` ends all. */
  constructor(screen, wanted, signal) {
    super();
    this.#screen = screen;
    this.#at = Math.max(0, this.#kinds.findIndex(({ kind }) => kind === wanted));
    const check = setInterval(() => this.#check(performance.now()), CHECK_MS);
    document.addEventListener("visibilitychange", () => this.#visibilityChanged(), { signal });
    signal.addEventListener("abort", () => {
      clearInterval(check);
      this.close();
    });
  }

  /** The source in use, or null. */
  get current() {
    return this.#source;
  }

  /** What is on screen: an element that can be drawn, or null. */
  get picture() {
    return this.#screen.lastElementChild;
  }

  /** Show this picture until one comes. */
  begin(picture) {
    if (!picture) return;
    this.#screen.append(still(picture));
    this.#screen.dataset.frameIndex = ""; // nothing is hidden any more
  }

  /** The control socket has the session {id, token, fps}, and is about to tell its state. */
  open(session) {
    const same = this.#session?.id === session.id;
    this.#session = session;
    this.#online = true;
    this.#expectedAt = null;
    if (same && this.#source) return;
    this.#announcement = null;
    this.#retire();
  }

  /** The control socket is gone; what still comes is shown, what fails is not replaced. */
  suspend() {
    this.#online = false;
    clearTimeout(this.#timer);
  }

  /** Let nothing come any more. */
  close() {
    this.suspend();
    this.#retire();
    this.#session = null;
  }

  /** Come by this way from now on. */
  choose(kind) {
    this.#at = Math.max(0, this.#kinds.findIndex((one) => one.kind === kind));
    this.#failures = 0;
    if (this.#online) this.#start();
  }

  /** Try all ways again at once. */
  retry() {
    this.#failures = 0;
    if (this.#online) this.#start();
  }

  /** Play on after a click. */
  play() {
    this.#blocked = false;
    this.#patient();
    this.#source?.play();
  }

  /** Tell of a message of the control socket. */
  heard(message) {
    const now = performance.now();
    if (message.type === "session.state") this.#entered(message.state);
    if (message.type === "video.chunk_metadata") {
      this.#announcement = message;
      this.#expectedAt ??= now;
    }
    this.#source?.heard(message, now);
  }

  #entered(state) {
    this.#moving = state !== "paused";
    this.#waiting = state === "queued"; // nothing to be seen yet
    if (!this.#source) this.#startSeen();
  }

  #start() {
    clearTimeout(this.#timer);
    this.#retire();
    const Kind = this.#kinds[this.#at];
    this.#worked = this.#isOpen = this.#blocked = false;
    this.#patient();
    let source;
    try {
      source = new Kind();
    } catch (error) {
      this.#failed(error.message); // a browser may have it and forbid it
      return;
    }
    this.#source = source;
    source.addEventListener("open", () => {
      this.#isOpen = true;
    });
    source.addEventListener("frame", ({ detail }) => this.#saw(source, detail));
    source.addEventListener("failed", ({ detail }) => this.#failed(detail));
    source.addEventListener("blocked", () => {
      this.#blocked = true;
    });
    for (const type of HANDED_ON) {
      source.addEventListener(type, ({ detail }) => this.#fire(type, detail));
    }
    this.#screen.prepend(source.element); // under the last picture until it has one of its own
    this.#fire("using", { kind: Kind.kind, label: Kind.label });
    const announced = this.#announcement ? [this.#announcement] : [];
    source.start({ ...this.#session, announced });
  }

  #saw(source, detail) {
    if (this.#blocked) return; // a player that must not play may show its first picture
    this.#expectedAt = null;
    if (!this.#worked) {
      this.#worked = true;
      this.#failures = 0;
      this.#screen.replaceChildren(source.element);
    }
    this.#screen.dataset.frameIndex = detail.index;
    this.#fire("frame", detail);
  }

  /** End the present source; what it showed last stays to be seen. */
  #retire() {
    const source = this.#source;
    if (!source) return;
    this.#source = null;
    if (this.#worked) this.#screen.append(still(source.element));
    source.element.remove();
    source.stop();
  }

  #failed(reason) {
    const { label } = this.#kinds[this.#at];
    console.info(`${label}: ${reason}`);
    const worked = this.#worked;
    this.#retire();
    if (!this.#online) return;
    if (!worked) {
      this.#failures += 1;
      this.#at = (this.#at + 1) % this.#kinds.length;
    }
    if (this.#failures >= this.#kinds.length) {
      this.#failures = 0;
      this.#later(EXHAUSTED_MS);
      this.#fire("failed", { reason, afterMs: EXHAUSTED_MS });
    } else if (worked) {
      this.#later(AGAIN_MS);
      this.#fire("lost", "The picture was lost");
    } else this.#later(NEXT_MS);
  }

  #later(ms) {
    this.#timer = setTimeout(() => this.#startSeen(), ms);
  }

  /** Start, if the page is looked at: browsers take decoders and players from hidden pages. */
  #startSeen() {
    if (!document.hidden && this.#online && !this.#waiting && !this.#source) this.#start();
  }

  #visibilityChanged() {
    this.#patient();
    this.#startSeen();
  }

  /** Begin to count anew how long nothing is seen. */
  #patient() {
    this.#startedAt = performance.now();
    this.#expectedAt = null;
  }

  #check(now) {
    if (!this.#source || !this.#online || this.#blocked || document.hidden) return;
    if (!this.#moving) this.#expectedAt = null;
    const slow = !this.#isOpen && now - this.#startedAt > GIVE_UP_MS;
    const blind = this.#expectedAt !== null && now - this.#expectedAt > GIVE_UP_MS;
    if (slow) this.#failed("no connection came about");
    else if (blind) this.#failed("no picture came through");
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
