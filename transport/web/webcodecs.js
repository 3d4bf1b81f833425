/**
 * H.264 from a view socket through WebCodecs to a canvas: the least delay, in secure contexts only.
 */

import { readAccessUnit } from "./bitstream.js";
import { factsOf, Feed } from "./feed.js";
import { Painter } from "./painter.js";
import { Source } from "./source.js";

export class WebCodecsSource extends Source {
  static kind = "webcodecs";
  static label = "WebSocket H.264";
  static usable = isSecureContext && "VideoDecoder" in window;
  #painter;
  #feed = null;
  #decoder;
  #decoding = new Map(); // frame index -> what is known of the frame

  constructor() {
    super(null);
    this.#painter = new Painter((...drawn) => this.#drew(...drawn), this.signal);
    this.element = this.#painter.canvas;
    this.#decoder = new VideoDecoder({
      output: (frame) => this.#decoded(frame),
      error: ({ message }) => this.fail(`The video cannot be decoded: ${message}`),
    });
  }

  start(session) {
    const events = {
      opened: () => this.opened(),
      picture: (buffer, meta) => this.#take(new Uint8Array(buffer), meta),
      failed: (reason) => this.fail(reason),
    };
    this.#feed = new Feed(session, { format: "h264" }, events, this.signal);
  }

  async measure() {
    this.numBytes = this.#feed.numBytes;
    this.numDropped = this.#feed.numDropped + this.#painter.numLate;
  }

  stop() {
    super.stop();
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }

  #take(data, meta) {
    const { isKey, codec } = readAccessUnit(data);
    if (this.#decoder.state === "unconfigured") {
      if (!isKey || !codec) return;
      this.#decoder.configure({ codec, optimizeForLatency: true });
    }
    if (this.#decoder.state !== "configured") return;
    const facts = factsOf(meta);
    this.#decoding.set(facts.index, { ...facts, wasHidden: document.hidden });
    const type = isKey ? "key" : "delta";
    // The time stamp only has to bring the frame's number through the decoder.
    this.#decoder.decode(new EncodedVideoChunk({ type, timestamp: facts.index, data }));
  }

  #decoded(frame) {
    const facts = this.#decoding.get(frame.timestamp);
    for (const index of this.#decoding.keys()) {
      if (index <= frame.timestamp) this.#decoding.delete(index);
    }
    if (this.signal.aborted || !facts) frame.close();
    else this.#painter.offer(facts, frame);
  }

  #drew({ index, chunk, ptsUs, wasHidden }, picture, drawnAt) {
    this.presented({ index, chunk, ptsUs, drawnAt, wasHidden, picture });
  }
}
