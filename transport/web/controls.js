/**
 * Pause, start over, seed. Each is a request to the server; what is shown is what the server says.
 */

import { newId } from "./prompts.js";

const MAX_SEED = 2 ** 32 - 1;
export const SEED_HINT = "A whole number from 0 to 4294967295.";

/** Return the seed that is written, or null when it is none. */
export function readSeed(text) {
  const seed = Number(text);
  return /^\d+$/.test(text) && seed <= MAX_SEED ? seed : null;
}

export class Controls extends EventTarget {
  #send;
  #form;
  #input;
  #hint;
  #shown = null; // the seed of the newest chunk
  #wanted = null; // the seed asked for and not seen yet

  /** `send(message)` returns false when nobody is there. Fires `nobody` then. */
  constructor(send, form) {
    super();
    this.#send = send;
    this.#form = form;
    this.#input = form.querySelector("input");
    this.#hint = form.querySelector(".hint");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submitSeed();
    });
    this.#input.addEventListener("input", () => this.#edited());
    this.#input.addEventListener("keydown", ({ key }) => key === "Escape" && this.#showSeed());
  }

  /** The seed that a new session should have: number, or null for the server's choice. */
  get seed() {
    return this.#wanted ?? this.#shown;
  }

  setPaused(paused) {
    this.#update({ paused });
  }

  /** Start the scene again: empty history, same seed. */
  startOver() {
    this.#update({ reset: "all" });
  }

  newSeed() {
    this.#useSeed(crypto.getRandomValues(new Uint32Array(1))[0]);
  }

  /** Ask for `seed`, from the page's address or the box, in a scene that starts again. */
  wantSeed(seed) {
    this.#wanted = seed;
    this.#showSeed();
  }

  /** A chunk or a session reported its seed. */
  sawSeed(seed) {
    if (!Number.isInteger(seed)) return;
    if (seed === this.#wanted) this.#wanted = null;
    if (seed === this.#shown) return;
    this.#shown = seed;
    if (document.activeElement !== this.#input) this.#showSeed();
  }

  #useSeed(seed) {
    this.wantSeed(seed);
    this.#update({ seed, reset: "all" });
  }

  #submitSeed() {
    const seed = readSeed(this.#input.value.trim());
    if (seed === null) {
      this.#input.setAttribute("aria-invalid", "true");
      this.#hint.textContent = SEED_HINT;
      return;
    }
    this.#useSeed(seed);
    this.#input.blur();
  }

  #edited() {
    this.#input.removeAttribute("aria-invalid");
    this.#hint.textContent = "";
    this.#form.classList.toggle("edited", this.#input.value.trim() !== String(this.seed ?? ""));
  }

  #showSeed() {
    this.#input.value = this.seed ?? "";
    this.#edited();
  }

  #update(fields) {
    const message = { type: "session.update", event_id: newId(), ...fields };
    if (!this.#send(message)) this.dispatchEvent(new CustomEvent("nobody"));
  }
}
