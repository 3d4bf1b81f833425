/**
 * Decoded frames to a canvas: in order, on the screen's own beat, late ones dropped.
 */

import { sizeOf } from "./picture.js";

const MAX_WAITING = 3; // decoded frames kept for the next refreshes; more means that we are late
const SMALLEST_BACKING_PX = 512; // small pictures are enlarged by the canvas, not by the page
const REFRESH_TIMEOUT_MS = 250; // an off-screen frame gets no refresh; it must not stop the stream

export class Painter {
  numLate = 0; // frames that came while the page was visible and were never drawn
  canvas = document.createElement("canvas");
  #context = this.canvas.getContext("2d", { alpha: false });
  #drawn;
  #waiting = []; // [{facts, image}], ascending
  #newest = -1; // highest index drawn or waiting
  #shown = -1; // highest index drawn
  #unseen = null; // the newest frame that came while the page was hidden
  #refresh = null;
  #size = "";

  /** `drawn(facts, image, at)` is called for each frame drawn, before its image is closed. */
  constructor(drawn, signal) {
    this.#drawn = drawn;
    document.addEventListener("visibilitychange", () => this.#visibilityChanged(), { signal });
    signal.addEventListener("abort", () => this.#clear());
  }

  /** Take a decoded frame {index, ...} and its image, which is closed here. */
  offer(facts, image) {
    if (document.hidden) this.#keepUnseen({ facts, image });
    else if (facts.index > this.#newest) {
      this.#newest = facts.index;
      this.#waiting.push({ facts, image });
      this.#schedule();
    } else this.#skip({ facts, image });
  }

  #schedule() {
    if (this.#refresh) return;
    const draw = () => {
      this.#cancel();
      this.#drawNext();
    };
    this.#refresh = {
      animation: requestAnimationFrame(draw),
      timer: setTimeout(draw, REFRESH_TIMEOUT_MS),
    };
  }

  #cancel() {
    cancelAnimationFrame(this.#refresh?.animation);
    clearTimeout(this.#refresh?.timer);
    this.#refresh = null;
  }

  #drawNext() {
    while (this.#waiting.length > MAX_WAITING) this.#skip(this.#waiting.shift());
    const next = this.#waiting.shift();
    if (!next) return;
    const { facts, image } = next;
    this.#fit(sizeOf(image));
    this.#context.drawImage(image, 0, 0, this.canvas.width, this.canvas.height);
    this.#shown = facts.index;
    this.#drawn(facts, image, performance.now());
    image.close();
    if (this.#waiting.length) this.#schedule();
  }

  #fit({ width, height }) {
    if (this.#size === `${width}x${height}`) return;
    this.#size = `${width}x${height}`;
    const scale = Math.max(1, Math.ceil(SMALLEST_BACKING_PX / Math.max(width, height)));
    this.canvas.width = width * scale;
    this.canvas.height = height * scale;
    this.#context.imageSmoothingQuality = "high";
  }

  #skip({ image }) {
    this.numLate += 1;
    image.close();
  }

  #keepUnseen(frame) {
    const older = this.#unseen && this.#unseen.facts.index > frame.facts.index;
    (older ? frame : this.#unseen)?.image.close();
    if (older) return;
    this.#unseen = { ...frame, facts: { ...frame.facts, wasHidden: true } };
  }

  #visibilityChanged() {
    if (document.hidden) {
      for (const frame of this.#waiting.splice(0)) this.#keepUnseen(frame);
      this.#newest = this.#shown;
      return;
    }
    const newest = this.#unseen;
    this.#unseen = null;
    if (newest) this.offer(newest.facts, newest.image);
  }

  #clear() {
    this.#cancel();
    for (const { image } of this.#waiting.splice(0)) image.close();
    this.#unseen?.image.close();
    this.#unseen = null;
  }
}
