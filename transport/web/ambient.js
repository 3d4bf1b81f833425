/**
 * The light that the picture throws into the room: a few pixels, enlarged and slowly followed.
 */

const CELLS = 6; // the picture is reduced to this many pixels a side
const EVERY_MS = 250;
const FOLLOW = 0.25; // share of the new light at each step

export class Ambient {
  #context;
  #small;
  #last = 0;
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #lit = false;

  constructor(canvas) {
    this.#context = canvas.getContext("2d");
    this.#small = document.createElement("canvas");
    this.#small.width = this.#small.height = CELLS;
  }

  /** Follow `picture` (an ImageBitmap); with reduced motion only the first one lights the room. */
  follow(picture, now) {
    if (now - this.#last < EVERY_MS || (this.#lit && this.#still.matches)) return;
    this.#last = now;
    const small = this.#small.getContext("2d");
    small.imageSmoothingQuality = "medium"; // averages; the default would pick single pixels
    small.drawImage(picture, 0, 0, CELLS, CELLS);
    const { width, height } = this.#context.canvas;
    this.#context.imageSmoothingQuality = "high";
    this.#context.globalAlpha = this.#lit ? FOLLOW : 1;
    // Beyond the edges, so that the outermost cells do not fade.
    this.#context.drawImage(this.#small, -width / 8, -height / 8, width * 1.25, height * 1.25);
    this.#lit = true;
  }
}
