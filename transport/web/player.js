/**
 * JPEG frames from the socket to a canvas: in order, on the screen's own beat, late ones dropped.
 *
 * A media source has `format` (what `session.start` asks for), `receive(buffer)` and `restart()`,
 * and fires `frame` for each picture that became visible. Another source, one that plays WebRTC
 * beside a control socket with format "none", can stand in its place.
 */

const HEADER_BYTES = 16; // u32 frame_index, u32 chunk_index, u64 pts_us, big-endian
const MAX_WAITING = 3; // decoded frames kept for the next refreshes; more means that we are late
const SMALLEST_BACKING_PX = 512; // small pictures are enlarged by the canvas, not by the page
const REFRESH_TIMEOUT_MS = 250; // an off-screen frame gets no refresh; it must not stop the stream

function parseFrame(buffer) {
  if (buffer.byteLength <= HEADER_BYTES) return null;
  const view = new DataView(buffer);
  return {
    index: view.getUint32(0),
    chunk: view.getUint32(4),
    ptsUs: Number(view.getBigUint64(8)),
    jpeg: new Blob([new Uint8Array(buffer, HEADER_BYTES)], { type: "image/jpeg" }),
    acknowledged: false,
  };
}

export class JpegPlayer extends EventTarget {
  format = "jpeg";
  late = 0; // frames that came while the page was visible and were never drawn
  #canvas;
  #context;
  #acknowledge;
  #waiting = []; // [{frame, bitmap}], ascending
  #newest = -1; // highest index drawn or waiting
  #drawn = -1; // highest index drawn
  #unseen = null; // the last frame that came while the page was hidden
  #epoch = 0; // a decode that began before a restart is thrown away
  #refresh = null;
  #size = null; // of the pictures, "128x128"

  /**
   * `acknowledge(frameIndex, displayedAtMs | undefined)` is called once for each frame; `signal`
   * ends the listening to the page's own events.
   */
  constructor(canvas, acknowledge, signal) {
    super();
    this.#canvas = canvas;
    this.#context = canvas.getContext("2d", { alpha: false });
    this.#acknowledge = acknowledge;
    document.addEventListener("visibilitychange", () => this.#visibilityChanged(), { signal });
  }

  /** Show the picture of another canvas until one comes. */
  begin(canvas) {
    this.#canvas.width = canvas.width;
    this.#canvas.height = canvas.height;
    this.#context.drawImage(canvas, 0, 0);
    this.#canvas.dataset.frameIndex = canvas.dataset.frameIndex ?? "";
  }

  /** Take one binary message: a header and a JPEG. */
  receive(buffer) {
    const frame = parseFrame(buffer);
    if (!frame) return;
    if (document.hidden) this.#keepUnseen(frame);
    else this.#decode(frame);
  }

  /** Forget frame numbers: another session begins. The last picture stays until a new one comes. */
  restart() {
    this.#epoch += 1;
    this.#newest = -1;
    this.#drawn = -1;
    this.#unseen = null;
    for (const { bitmap } of this.#waiting.splice(0)) bitmap.close();
  }

  async #decode(frame) {
    const epoch = this.#epoch;
    let bitmap = null;
    try {
      bitmap = await createImageBitmap(frame.jpeg);
    } catch {
      console.warn(`frame ${frame.index} could not be decoded`);
    }
    if (epoch !== this.#epoch) {
      bitmap?.close();
      return;
    }
    if (bitmap && frame.index > this.#newest && !document.hidden) {
      this.#newest = frame.index;
      this.#waiting.push({ frame, bitmap });
      this.#schedule();
      return;
    }
    bitmap?.close();
    if (document.hidden) this.#keepUnseen(frame);
    else this.#skip(frame);
  }

  #schedule() {
    if (this.#refresh) return;
    const draw = () => {
      cancelAnimationFrame(this.#refresh.animation);
      clearTimeout(this.#refresh.timer);
      this.#refresh = null;
      this.#drawNext();
    };
    this.#refresh = {
      animation: requestAnimationFrame(draw),
      timer: setTimeout(draw, REFRESH_TIMEOUT_MS),
    };
  }

  #drawNext() {
    while (this.#waiting.length > MAX_WAITING) {
      const { frame, bitmap } = this.#waiting.shift();
      bitmap.close();
      this.#skip(frame);
    }
    const next = this.#waiting.shift();
    if (!next) return;
    const { frame, bitmap } = next;
    this.#fit(bitmap.width, bitmap.height);
    this.#context.drawImage(bitmap, 0, 0, this.#canvas.width, this.#canvas.height);
    this.#canvas.dataset.frameIndex = frame.index;
    this.#drawn = frame.index;
    const drawnAt = performance.now();
    const wasHidden = frame.acknowledged;
    this.#answer(frame, performance.timeOrigin + drawnAt);
    const { index, chunk, ptsUs } = frame;
    const detail = { index, chunk, ptsUs, drawnAt, wasHidden, picture: bitmap };
    this.dispatchEvent(new CustomEvent("frame", { detail }));
    bitmap.close();
    if (this.#waiting.length) this.#schedule();
  }

  #fit(width, height) {
    if (this.#size === `${width}x${height}`) return;
    this.#size = `${width}x${height}`;
    const scale = Math.max(1, Math.ceil(SMALLEST_BACKING_PX / Math.max(width, height)));
    this.#canvas.width = width * scale;
    this.#canvas.height = height * scale;
    this.#context.imageSmoothingQuality = "high";
    this.dispatchEvent(new CustomEvent("size", { detail: { width, height } }));
  }

  #answer(frame, displayedAtMs) {
    if (!frame.acknowledged) this.#acknowledge(frame.index, displayedAtMs);
    frame.acknowledged = true;
  }

  #skip(frame) {
    this.late += 1;
    this.#answer(frame);
  }

  #keepUnseen(frame) {
    if (!this.#unseen || frame.index > this.#unseen.index) this.#unseen = frame;
    this.#answer(frame);
  }

  #visibilityChanged() {
    if (document.hidden) {
      // No refresh comes any more: answer for the waiting frames so that the server goes on.
      for (const { frame, bitmap } of this.#waiting.splice(0)) {
        bitmap.close();
        this.#keepUnseen(frame);
      }
      this.#newest = this.#drawn;
      return;
    }
    const newest = this.#unseen;
    this.#unseen = null;
    if (newest) this.#decode(newest);
  }
}
