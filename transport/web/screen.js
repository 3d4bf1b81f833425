/**
 * Full screen for the whole page, with the prompt box over the picture. Where the browser has none
 * (phones of one maker), the page fills its window instead.
 */

const IDLE_MS = 2500;

export class FullScreen extends EventTarget {
  #body = document.body;
  #idleTimer = null;

  /** Fires `change` when it begins or ends. */
  constructor() {
    super();
    document.addEventListener("fullscreenchange", () => {
      this.#set(Boolean(document.fullscreenElement));
    });
    for (const type of ["pointermove", "pointerdown", "keydown", "focusin"]) {
      addEventListener(type, () => this.#stir(), { passive: true });
    }
    addEventListener("keydown", ({ key }) => {
      if (key === "Escape" && this.active) this.#leave();
    });
  }

  get active() {
    return this.#body.dataset.screen === "full";
  }

  async toggle() {
    const root = document.documentElement;
    if (document.fullscreenElement) await document.exitFullscreen();
    else if (this.active) this.#set(false);
    else if (root.requestFullscreen) await root.requestFullscreen().catch(() => this.#set(true));
    else this.#set(true);
  }

  /** Follow the key; most browsers take it before the page has it, and have left already. */
  #leave() {
    if (document.fullscreenElement) document.exitFullscreen().catch(() => {});
    else this.#set(false);
  }

  #set(full) {
    if (full) this.#body.dataset.screen = "full";
    else delete this.#body.dataset.screen;
    this.#stir();
    this.dispatchEvent(new CustomEvent("change", { detail: full }));
  }

  #stir() {
    delete this.#body.dataset.idle;
    clearTimeout(this.#idleTimer);
    if (!this.active) return;
    this.#idleTimer = setTimeout(() => {
      const writing = document.activeElement?.matches("textarea") && document.activeElement.value;
      if (!writing) this.#body.dataset.idle = "";
    }, IDLE_MS);
  }
}
