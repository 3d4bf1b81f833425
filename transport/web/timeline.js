/**
 * The prompts so far, newest first: the one on screen, those on their way, those that were.
 */

import { describe } from "./promptbox.js";

const MAX_ROWS = 100;

/** Return media time as m:ss, or h:mm:ss after an hour. */
export function clock(ptsUs) {
  const seconds = Math.floor(ptsUs / 1e6);
  const parts = [Math.floor(seconds / 60) % 60, seconds % 60];
  const hours = Math.floor(seconds / 3600);
  if (hours) parts.unshift(hours);
  return parts.map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
}

export class Timeline extends EventTarget {
  #list;
  #log;
  #rows = new Map(); // entry -> its parts

  /** Fires `reuse` with the text of a prompt that was chosen. */
  constructor(list, log) {
    super();
    this.#list = list;
    this.#log = log;
    log.addEventListener("change", ({ detail }) => this.#update(detail));
  }

  #update(changed) {
    const row = this.#rows.get(changed) ?? this.#add(changed);
    row.item.dataset.promptState = changed.state;
    row.time.textContent = changed.ptsUs === null ? "" : clock(changed.ptsUs);
    row.words.textContent = describe(changed);
    for (const [entry, { item }] of this.#rows) {
      if (entry === this.#log.current) item.setAttribute("aria-current", "true");
      else item.removeAttribute("aria-current");
    }
  }

  #add(entry) {
    const item = document.createElement("li");
    const button = document.createElement("button");
    const [time, text, words] = ["time", "text", "words"].map((name) => {
      const part = document.createElement("span");
      part.className = name;
      button.append(part);
      return part;
    });
    button.type = "button";
    button.title = "Edit and send again";
    text.textContent = entry.text;
    text.dir = "auto";
    button.addEventListener("click", () => {
      this.dispatchEvent(new CustomEvent("reuse", { detail: entry.text }));
    });
    item.append(button);
    this.#list.prepend(item);
    const row = { item, time, words };
    this.#rows.set(entry, row);
    if (this.#rows.size > MAX_ROWS) this.#dropOldest();
    return row;
  }

  #dropOldest() {
    const [entry, { item }] = this.#rows.entries().next().value;
    this.#rows.delete(entry);
    item.remove();
  }
}
