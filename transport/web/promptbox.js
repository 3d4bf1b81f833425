/**
 * The prompt box: Enter sends, blank is refused here, arrow keys bring earlier prompts back; how
 * the prompt takes over; and the receipt line, which follows the newest prompt to the screen.
 */

import { clock } from "./clock.js";

const MAX_BYTES = 60_000; // the server takes messages of 64 KiB
const STEPS = ["sent", "accepted", "shown"];
const REACHED = { waiting: 0, sent: 1, accepted: 2, applied: 2, shown: 3 };

const after = ({ latencyMs }) =>
  latencyMs === null ? "" : ` after ${Math.round(latencyMs).toLocaleString("en")} ms`;

/** Say in words where a going back is. */
function describeRewind(entry) {
  if (entry.state === "shown") return `Back at ${clock(entry.atUs)}${after(entry)}`;
  if (entry.state === "superseded") return "Overtaken by something newer";
  return entry.state === "rejected" ? `Refused: ${entry.message}` : "Going back";
}

/** Say in words where a prompt is. */
export function describe(entry) {
  if (entry.undone) return "Undone by going back";
  if (entry.kind === "rewind") return describeRewind(entry);
  switch (entry.state) {
    case "waiting":
      return "Waiting for the stream";
    case "sent":
      return "Sent";
    case "accepted":
    case "applied":
      return "Accepted";
    case "shown":
      return `On screen${after(entry)}`;
    case "superseded":
      return "Replaced by a newer prompt";
    case "rejected":
      return `Refused: ${entry.message}`;
  }
}

export class PromptBox extends EventTarget {
  suggestions = [];
  #form;
  #input;
  #receipt;
  #how;
  #chips;
  #log;
  #recalled = null; // how many prompts back the arrow keys have gone


  /**
   * `how` holds the choice of transition, `chips` the suggestions. Fires `submit` {text, transition}.
   */
  constructor(form, receipt, how, chips, log) {
    super();
    this.#form = form;
    this.#input = form.querySelector("textarea");
    this.#receipt = receipt;
    this.#how = { mode: how.querySelector("select"), chunks: how.querySelector("input") };
    this.#chips = chips;
    this.#log = log;
    this.#how.mode.addEventListener("change", () => this.#modeChanged());
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.#input.addEventListener("input", () => this.#edited());
    this.#input.addEventListener("keydown", (event) => this.#key(event));
    log.addEventListener("change", ({ detail }) => this.#showReceipt(detail));
  }

  focus() {
    this.#input.focus();
  }

  /** Offer prompts to press. */
  suggest(texts) {
    this.suggestions = texts;
    for (const text of texts) {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.textContent = text;
      chip.dir = "auto";
      chip.addEventListener("click", () => this.offer(text));
      this.#chips.append(chip);
    }
  }

  /** Put `text` into the box, to be edited or sent. */
  fill(text) {
    this.#input.value = text;
    this.#edited();
    this.#input.focus();
    this.#input.setSelectionRange(text.length, text.length);
  }

  /** Check and send `text` as if it had been typed. */
  offer(text) {
    const fault = this.#faultOf(text);
    if (fault) {
      this.#refuse(fault);
      return false;
    }
    this.#recalled = null;
    const detail = { text: text.trim(), transition: this.#transition() };
    this.dispatchEvent(new CustomEvent("submit", { detail }));
    return true;
  }

  /** Choose how prompts take over, as another box does. */
  choose(box) {
    this.#how.mode.value = box.#how.mode.value;
    this.#how.chunks.value = box.#how.chunks.value;
    this.#modeChanged();
  }

  #transition() {
    const mode = this.#how.mode.value;
    if (mode !== "blend") return mode ? { mode } : null;
    const chunks = Math.round(Number(this.#how.chunks.value));
    const legal = Math.min(Math.max(chunks || 1, 1), 99);
    this.#how.chunks.value = legal;
    return { mode, chunks: legal };
  }

  #modeChanged() {
    this.#how.chunks.closest("label").hidden = this.#how.mode.value !== "blend";
  }

  #submit() {
    if (!this.offer(this.#input.value)) {
      this.#input.focus();
      return;
    }
    this.#input.value = "";
    this.#edited();
  }

  #faultOf(text) {
    if (!text.trim()) return "Write what you want to see first.";
    const bytes = new TextEncoder().encode(JSON.stringify(text)).length;
    return bytes > MAX_BYTES ? "This prompt is too long to send." : null;
  }

  #refuse(fault) {
    this.#input.setAttribute("aria-invalid", "true");
    this.#form.classList.remove("nudge");
    void this.#form.offsetWidth; // starts the animation again
    this.#form.classList.add("nudge");
    this.#say("refused", fault, 0);
  }

  #edited() {
    if (this.#input.getAttribute("aria-invalid")) {
      this.#input.removeAttribute("aria-invalid");
      this.#say("idle", "", 0);
    }
    this.#form.classList.toggle("filled", this.#input.value.trim() !== "");
    this.#input.style.height = "auto";
    this.#input.style.height = `${this.#input.scrollHeight}px`;
  }

  #key(event) {
    if (event.isComposing) return; // Enter ends the composition, it does not send
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.#submit();
    } else if (event.key === "ArrowUp" && this.#input.selectionEnd === 0) {
      this.#recall(event, 1);
    } else if (event.key === "ArrowUp" && this.#recalled !== null) {
      this.#recall(event, 1);
    } else if (event.key === "ArrowDown" && this.#recalled !== null) {
      this.#recall(event, -1);
    } else if (event.key === "Escape") {
      this.#input.blur();
    }
  }

  #recall(event, step) {
    const prompts = this.#log.entries.filter(({ kind }) => kind === "prompt");
    const texts = [...new Set(prompts.map(({ text }) => text).reverse())];
    const position = (this.#recalled ?? 0) + step;
    if (position < 0 || position > texts.length) return;
    event.preventDefault();
    this.#recalled = position || null;
    this.fill(position ? texts[position - 1] : "");
  }

  #showReceipt(entry) {
    if (entry !== this.#log.entries.at(-1)) return;
    if (entry.state === "rejected" && entry.kind === "prompt" && !this.#input.value) {
      this.#input.value = entry.text;
      this.#edited();
    }
    this.#say(entry.state, describe(entry), REACHED[entry.state] ?? 0);
  }

  #say(state, words, reached) {
    this.#receipt.dataset.promptState = state;
    this.#receipt.querySelector(".words").textContent = words;
    STEPS.forEach((step, i) => {
      this.#receipt.querySelector(`[data-step=${step}]`).classList.toggle("reached", i < reached);
    });
  }
}
