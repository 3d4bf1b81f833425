/**
 * The prompts so far, newest first: the one on screen, those on their way, those that were.
 *
 * A row goes back to where its prompt began; beside it are a fork from there, and the text to edit.
 */

import { clock } from "./clock.js";
import { describe } from "./promptbox.js";

const MAX_ROWS = 100;

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export class Timeline extends EventTarget {
  #list;
  #log;
  #readOnly;
  #rows = new Map(); // entry -> its parts

  /**
   * Fires `reuse` with a text, and `back` and `fork` with the entry that was chosen; never when it
   * is only to be read.
   */
  constructor(list, log, readOnly) {
    super();
    this.#readOnly = readOnly;
    this.#list = list;
    this.#log = log;
    log.addEventListener("change", ({ detail }) => this.#update(detail));
  }

  #update(changed) {
    const row = this.#rows.get(changed) ?? this.#add(changed);
    row.item.dataset.promptState = changed.state;
    row.item.dataset.kind = changed.kind;
    row.item.toggleAttribute("data-undone", changed.undone);
    row.time.textContent = changed.ptsUs === null ? "" : clock(changed.ptsUs);
    row.words.textContent = describe(changed);
    row.text.textContent = changed.text;
    for (const [entry, { item, main, fork }] of this.#rows) {
      if (entry === this.#log.current) item.setAttribute("aria-current", "true");
      else item.removeAttribute("aria-current");
      const back = this.#log.canGoBack(entry) && !this.#readOnly;
      main.title = this.#readOnly ? "" : back ? "Go back to here" : "Edit and send again";
      fork.disabled = !back;
    }
  }

  #add(entry) {
    const item = document.createElement("li");
    const main = this.#button(item, "row", null, () => this.#choose(entry));
    main.disabled = this.#readOnly;
    const [time, text, words] = ["time", "text", "words"].map((name) => {
      const part = document.createElement("span");
      part.className = name;
      main.append(part);
      return part;
    });
    text.dir = "auto";
    const fork = this.#button(item, "act", "fork", () => this.#fire("fork", entry));
    fork.title = "Fork from here";
    const edit = this.#button(item, "act", "edit", () => this.#fire("reuse", entry.text));
    edit.title = "Edit and send again";
    for (const button of [fork, edit]) {
      button.setAttribute("aria-label", button.title);
      button.hidden = this.#readOnly;
    }
    this.#list.prepend(item);
    const row = { item, main, fork, time, text, words };
    this.#rows.set(entry, row);
    if (this.#rows.size > MAX_ROWS) this.#dropOldest();
    return row;
  }

  #button(item, className, picture, pressed) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = className;
    if (picture) button.append(icon(picture));
    button.addEventListener("click", pressed);
    item.append(button);
    return button;
  }

  #choose(entry) {
    if (this.#log.canGoBack(entry)) this.#fire("back", entry);
    else this.#fire("reuse", entry.text);
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }

  #dropOldest() {
    const [entry, { item }] = this.#rows.entries().next().value;
    this.#rows.delete(entry);
    item.remove();
  }
}
