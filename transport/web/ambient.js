/**
 * The light that the pictures throw into the room: a few pixels, enlarged and slowly followed.
 */

const CELLS = 6; // the picture is reduced to this many pixels a side
const EVERY_MS = 250;
const FOLLOW = 0.25; // share of the new light at each step

export class Ambient {
  #context;
  #small; // the places side by side, so that neighbours mix where they meet
  #last = []; // when each place was followed
  #still = matchMedia("(prefers-reduced-motion: reduce)");
  #lit = false;

  constructor(canvas) {
    this.#context = canvas.getContext("2d");
    this.#small = document.createElement("canvas");
    this.#arrange(1);
  }

  /**
   * Follow `picture` (anything that can be drawn), which is at `place` of so many side by side; with
   * reduced motion only the first ones light the room.
   */
  follow(picture, now, place, places) {
    if (this.#small.width !== CELLS * places) this.#arrange(places);
    const since = now - (this.#last[place] ?? -Infinity);
    if (since < EVERY_MS || (since < Infinity && this.#still.matches)) return;
    this.#last[place] = now;
    const small = this.#small.getContext("2d");
    small.imageSmoothingQuality = "medium"; // averages; the default would pick single pixels
    small.drawImage(picture, place * CELLS, 0, CELLS, CELLS);
    const { width, height } = this.#context.canvas;
    this.#context.imageSmoothingQuality = "high";
    this.#context.globalAlpha = this.#lit ? FOLLOW : 1;
    // Beyond the edges, so that the outermost cells do not fade.
    this.#context.drawImage(this.#small, -width / 8, -height / 8, width * 1.25, height * 1.25);
    this.#lit = true;
  }

  #arrange(places) {
    this.#small.width = CELLS * places;
    this.#small.height = CELLS;
    this.#last = [];
  }
}
