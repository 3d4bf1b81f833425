/**
 * What every way to the picture has in common.
 *
 * A media source plays one session in an element of its own: `start(session)` begins, `heard` is
 * told each message of the control socket, `stop()` ends it for good. It fires `open` when its
 * connection stands, `frame` {index, chunk, ptsUs, drawnAt, wasHidden, picture} for each picture
 * that became visible, `size` {width, height}, `failed` with a reason, and `blocked` when the
 * browser wants a click before it plays; `play()` follows the click. `picture` can be drawn.
 */

import { sizeOf } from "./picture.js";

export class Source extends EventTarget {
  element;
  numBytes = null; // received so far, or null when it cannot be told
  numDropped = 0; // frames that came, or were to come, and were never seen
  #size = "";
  #stopped = new AbortController();

  constructor(element) {
    super();
    this.element = element;
  }

  /** Aborted when the source is stopped. */
  get signal() {
    return this.#stopped.signal;
  }

  /** The control socket brought a message, at `now`. */
  heard() {}

  /** Play on after a click. */
  play() {}

  /** Bring the figures up to date. */
  async measure() {}

  /** End; nothing is fired afterwards. The element keeps its last picture. */
  stop() {
    this.#stopped.abort();
  }

  opened() {
    this.fire("open");
  }

  /** A picture became visible. */
  presented(detail) {
    const { width, height } = sizeOf(detail.picture);
    if (this.#size !== `${width}x${height}`) {
      this.#size = `${width}x${height}`;
      this.fire("size", { width, height });
    }
    this.fire("frame", detail);
  }

  fail(reason) {
    this.fire("failed", reason);
  }

  fire(type, detail) {
    if (!this.signal.aborted) this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
