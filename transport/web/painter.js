/**
 * Decoded frames to a canvas: in order, one a refresh of the screen, late ones dropped.
 *
 * A frame is drawn when it comes, so that the refresh has it only to show, and not to draw. It
 * counts as drawn with that refresh, and until then the next one waits: it would hide this one.
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
  #drawing = null; // {facts, image} on the canvas, and not on the screen yet
  #newest = -1; // highest index drawn or waiting
  #shown = -1; // highest index on the screen
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
      this.#drawNext();
    } else this.#skip({ facts, image });
  }

  #drawNext() {
    if (this.#drawing) return;
    while (this.#waiting.length > MAX_WAITING) this.#skip(this.#waiting.shift());
    const next = this.#waiting.shift();
    if (!next) return;
    this.#fit(sizeOf(next.image));
    this.#context.drawImage(next.image, 0, 0, this.canvas.width, this.canvas.height);
    this.#drawing = next;
    const shown = () => this.#refreshed();
    this.#refresh = {
      animation: requestAnimationFrame(shown),
      timer: setTimeout(shown, REFRESH_TIMEOUT_MS),
    };
  }

  #refreshed() {
    const { facts, image } = this.#drawing;
    this.#cancel();
    this.#shown = facts.index;
    this.#drawn(facts, image, performance.now());
    image.close();
    if (this.#waiting.length) setTimeout(() => this.#drawNext()); // when the refresh is over
  }

  #cancel() {
    cancelAnimationFrame(this.#refresh?.animation);
    clearTimeout(this.#refresh?.timer);
    this.#refresh = this.#drawing = null;
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
      if (this.#drawing) this.#waiting.unshift(this.#drawing);
      this.#cancel();
      for (const frame of this.#waiting.splice(0)) this.#keepUnseen(frame);
      this.#newest = this.#shown;
      return;
    }
    const newest = this.#unseen;
    this.#unseen = null;
    if (newest) this.offer(newest.facts, newest.image);
  }

  #clear() {
    this.#drawing?.image.close();
    this.#cancel();
    for (const { image } of this.#waiting.splice(0)) image.close();
    this.#unseen?.image.close();
    this.#unseen = null;
  }
}
