/**
 * JPEG frames from a view socket to a canvas, each acknowledged, so that a slow page stays fresh.
 */

import { Feed } from "./feed.js";
import { Painter } from "./painter.js";
import { Source } from "./source.js";

const HEADER_BYTES = 16; // u32 frame_index, u32 chunk_index, u64 pts_us, big-endian

function parseFrame(buffer) {
  if (buffer.byteLength <= HEADER_BYTES) return null;
  const view = new DataView(buffer);
  return {
    index: view.getUint32(0),
    chunk: view.getUint32(4),
    ptsUs: Number(view.getBigUint64(8)),
    wasHidden: document.hidden,
    jpeg: new Blob([new Uint8Array(buffer, HEADER_BYTES)], { type: "image/jpeg" }),
  };
}

export class JpegSource extends Source {
  static kind = "jpeg";
  static label = "WebSocket JPEG";
  static usable = true;
  #painter;
  #feed;
  #received = -1;
  #acknowledged = -1;
  #unseen = null; // the last frame that came while the page was hidden

  constructor() {
    super(null);
    this.#painter = new Painter((...drawn) => this.#drew(...drawn), this.signal);
    this.element = this.#painter.canvas;
    const seen = () => this.#visibilityChanged();
    document.addEventListener("visibilitychange", seen, { signal: this.signal });
  }

  start(session) {
    const events = {
      opened: () => this.opened(),
      picture: (buffer) => this.#take(buffer),
      failed: (reason) => this.fail(reason),
    };
    this.#feed = new Feed(session, { format: "jpeg", acks: true }, events, this.signal);
  }

  async measure() {
    this.numBytes = this.#feed.numBytes;
    this.numDropped = this.#feed.numDropped + this.#painter.numLate;
  }

  #take(buffer) {
    const frame = parseFrame(buffer);
    if (!frame) return;
    this.#received = frame.index;
    if (!document.hidden) {
      this.#decode(frame);
      return;
    }
    // No refresh comes: answer at once so that the server goes on, and decode the newest later.
    this.#unseen = frame;
    this.#acknowledge(frame.index);
  }

  async #decode(frame) {
    let bitmap = null;
    try {
      bitmap = await createImageBitmap(frame.jpeg);
    } catch {
      console.warn(`frame ${frame.index} could not be decoded`);
    }
    if (!bitmap || document.hidden) this.#acknowledge(frame.index);
    if (this.signal.aborted) bitmap?.close();
    else if (bitmap) this.#painter.offer(frame, bitmap);
  }

  #drew(frame, picture, drawnAt) {
    const { index, chunk, ptsUs, wasHidden } = frame;
    this.#acknowledge(index, performance.timeOrigin + drawnAt);
    this.presented({ index, chunk, ptsUs, drawnAt, wasHidden, picture });
  }

  /** An acknowledgement counts for all frames before it too, so a skipped frame needs none. */
  #acknowledge(index, displayedAtMs) {
    if (index <= this.#acknowledged) return;
    this.#acknowledged = index;
    const ack = { type: "session.ack", frame_index: index };
    if (displayedAtMs !== undefined) ack.displayed_at_ms = displayedAtMs;
    this.#feed.send(ack);
  }

  #visibilityChanged() {
    if (document.hidden) this.#acknowledge(this.#received);
    const newest = this.#unseen;
    this.#unseen = null;
    if (newest && !document.hidden) this.#decode(newest);
  }
}
