/**
 * The last moments as small pictures, the newest moving: choose one to go back to it.
 *
 * A chunk is one tile, and shows how the chunk ended: from there the video would go on. The strip
 * is one stop of the Tab key; arrow keys move in it. Fires `back` and `fork` {chunk, ptsUs}.
 */

import { clock } from "./clock.js";
import { sizeOf } from "./picture.js";

const MAX_TILES = 32;
const HEIGHT_PX = 88; // twice what is shown
const EVERY_MS = 250; // the newest tile need not show every frame

export class Filmstrip extends EventTarget {
  #strip;
  #tiles = []; // [{chunk, ptsUs, button, canvas}], oldest first
  #newest = -1;
  #drawnAt = 0;

  constructor(strip) {
    super();
    this.#strip = strip;
    strip.addEventListener("keydown", (event) => this.#key(event));
  }

  /** The newest tile's picture, a small one; null while there is none. */
  get newest() {
    return this.#tiles.at(-1)?.canvas ?? null;
  }

  /** A frame was drawn. */
  saw({ chunk, ptsUs, picture, drawnAt }) {
    if (chunk > this.#newest) {
      this.#drawnAt = 0;
      this.#newest = chunk;
      this.#tiles.push(this.#add(chunk));
      if (this.#tiles.length > MAX_TILES) this.#tiles.shift().button.remove();
    }
    const tile = this.#tiles.at(-1);
    if (tile?.chunk !== chunk || drawnAt - this.#drawnAt < EVERY_MS) return;
    this.#drawnAt = drawnAt;
    this.#draw(tile, ptsUs, picture);
  }

  /** Mark the newest tile as the first one of a prompt. */
  mark() {
    this.#tiles.at(-1)?.button.classList.add("first");
  }

  /** Chunks between these two were left behind; the second, which goes on, may be seen already. */
  rewound(toChunk, nextChunk) {
    this.#keep((chunk) => chunk <= toChunk || chunk >= nextChunk);
  }

  /** Chunks until this one cannot be gone back to. */
  gone(toChunk) {
    this.#keep((chunk) => chunk > toChunk);
  }

  clear() {
    this.#keep(() => false);
    this.#newest = -1;
  }

  /** Begin with the pictures of another strip, until `chunk`. */
  inherit(strip, chunk) {
    for (const { chunk: index, ptsUs, button, canvas } of strip.#tiles) {
      if (index > chunk) continue;
      const tile = this.#add(index);
      tile.button.className = button.className;
      this.#tiles.push(tile);
      this.#draw(tile, ptsUs, canvas);
      this.#newest = index;
    }
  }

  /** Move the keyboard to the newest moment but one. */
  focus() {
    (this.#tiles.at(-2) ?? this.#tiles.at(-1))?.button.focus();
  }

  #add(chunk) {
    const button = document.createElement("button");
    const canvas = document.createElement("canvas");
    button.type = "button";
    for (const { button: other } of this.#tiles) other.tabIndex = -1;
    button.append(canvas);
    const tile = { chunk, ptsUs: 0, button, canvas };
    button.addEventListener("click", ({ shiftKey }) => {
      const detail = { chunk, ptsUs: tile.ptsUs };
      this.dispatchEvent(new CustomEvent(shiftKey ? "fork" : "back", { detail }));
    });
    this.#strip.prepend(button);
    return tile;
  }

  #draw(tile, ptsUs, picture) {
    const { canvas, button } = tile;
    const { width, height } = sizeOf(picture);
    if (!tile.ptsUs || canvas.height !== HEIGHT_PX) {
      canvas.height = HEIGHT_PX;
      canvas.width = Math.round((HEIGHT_PX * width) / height);
    }
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    tile.ptsUs = ptsUs;
    button.setAttribute("aria-label", `Go back to ${clock(ptsUs)}`);
    button.title = `Go back to ${clock(ptsUs)} (with Shift: fork there)`;
    button.dataset.time = clock(ptsUs);
  }

  #keep(test) {
    const held = document.activeElement?.closest(".film") === this.#strip;
    for (const { chunk, button } of this.#tiles) if (!test(chunk)) button.remove();
    this.#tiles = this.#tiles.filter(({ chunk }) => test(chunk));
    if (this.#tiles.length) this.#tiles.at(-1).button.tabIndex = 0;
    if (held && !this.#strip.contains(document.activeElement)) this.#tiles.at(-1)?.button.focus();
  }

  #key(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    const buttons = this.#tiles.map(({ button }) => button);
    const at = buttons.indexOf(document.activeElement) + step;
    buttons[Math.max(0, Math.min(at, buttons.length - 1))]?.focus();
  }
}
