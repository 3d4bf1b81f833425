/**
 * Fragmented MP4 from a view socket through Media Source Extensions into a video element, kept at
 * its live end.
 */

import { readFragmentTime, readHeader } from "./bitstream.js";
import { factsOf, Feed } from "./feed.js";
import { makeVideo, playVideo, watchFrames } from "./frames.js";
import { Source } from "./source.js";

const Media = window.ManagedMediaSource ?? window.MediaSource;
const KEPT_S = 10; // behind the live end
const TRIM_EVERY_S = 10;
const LATE_S = 0.6; // behind the live end: jump
const LAG_S = 0.08; // from the end after a jump
const ROUNDING_S = 0.001;
const MAX_PENDING = 300; // fragments that the browser does not take; then it never will

export class MseSource extends Source {
  static kind = "mse";
  static label = "WebSocket MP4";
  static usable = Boolean(Media?.isTypeSupported('video/mp4; codecs="avc1.42E01F"'));
  #feed = null;
  #media = new Media();
  #buffer = null;
  #header = null; // {codec, timescale}
  #asked = false; // to play
  #pending = []; // bytes to append
  #frames = []; // [{time, index, chunk, ptsUs, wasHidden}], from the one on screen on
  #trimmedAt = 0;

  constructor() {
    super(makeVideo());
    this.element.disableRemotePlayback = true;
    this.element.src = URL.createObjectURL(this.#media);
    this.element.addEventListener("error", () => this.fail(this.element.error.message));
    watchFrames(this.element, (...frame) => this.#presented(...frame), this.signal);
    const { signal } = this;
    document.addEventListener("visibilitychange", () => this.#visibilityChanged(), { signal });
    this.#media.addEventListener("sourceopen", () => this.#append(), { signal });
  }

  start(session) {
    const events = {
      opened: () => this.opened(),
      picture: (buffer, meta) => this.#take(new Uint8Array(buffer), meta),
      failed: (reason) => this.fail(reason),
    };
    this.#feed = new Feed(session, { format: "m4s" }, events, this.signal);
  }

  play() {
    this.#asked = true;
    playVideo(this.element, () => this.fire("blocked"));
  }

  async measure() {
    this.numBytes = this.#feed.numBytes;
    const { droppedVideoFrames } = this.element.getVideoPlaybackQuality();
    this.numDropped = this.#feed.numDropped + droppedVideoFrames;
  }

  stop() {
    super.stop();
    URL.revokeObjectURL(this.element.src);
    this.element.removeAttribute("src");
    this.element.load();
  }

  #take(data, meta) {
    this.#header ??= readHeader(data);
    if (!this.#header) return; // cannot be played before one came
    const ticks = readFragmentTime(data);
    if (ticks !== null) {
      const time = ticks / this.#header.timescale;
      this.#frames.push({ time, ...factsOf(meta), wasHidden: document.hidden });
    }
    this.#pending.push(data);
    if (this.#pending.length > MAX_PENDING) this.fail("The browser does not take the video");
    else this.#append();
  }

  #append() {
    if (!this.#header || this.#media.readyState !== "open" || this.#buffer?.updating) return;
    try {
      this.#buffer ??= this.#open();
      if (!this.#trim() && this.#pending.length) this.#buffer.appendBuffer(this.#pending.shift());
    } catch (error) {
      this.fail(`The browser does not take the video: ${error.message}`);
    }
  }

  #open() {
    const buffer = this.#media.addSourceBuffer(`video/mp4; codecs="${this.#header.codec}"`);
    buffer.addEventListener("updateend", () => {
      this.#follow();
      this.#append();
    });
    return buffer;
  }

  /** Forget what was shown long ago; return whether something is being removed. */
  #trim() {
    const { buffered } = this.#buffer;
    if (!buffered.length) return false;
    const until = buffered.end(buffered.length - 1) - KEPT_S;
    if (until < this.#trimmedAt + TRIM_EVERY_S || until <= buffered.start(0)) return false;
    this.#trimmedAt = until;
    this.#buffer.remove(0, until);
    return true;
  }

  /** Stay at the live end, over what is missing after a pause or a skip. */
  #follow() {
    const { element, signal } = this;
    if (signal.aborted || !element.buffered.length) return;
    const last = element.buffered.length - 1;
    const start = element.buffered.start(last);
    const end = element.buffered.end(last);
    if (element.currentTime < start || end - element.currentTime > LATE_S) {
      element.currentTime = Math.max(start, end - LAG_S);
    }
    if (element.paused && !document.hidden && !this.#asked) this.play();
  }

  #visibilityChanged() {
    if (document.hidden) return;
    this.#asked = false;
    this.#follow();
  }

  #presented(now, { mediaTime }) {
    while (this.#frames.length > 1 && this.#frames[1].time <= mediaTime + ROUNDING_S) {
      this.#frames.shift();
    }
    const [frame] = this.#frames;
    if (!frame) return;
    const { index, chunk, ptsUs, wasHidden } = frame;
    const picture = this.element;
    this.presented({ index, chunk, ptsUs, drawnAt: now, wasHidden, picture });
  }
}
