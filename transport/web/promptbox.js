/**
 * The prompt box: Enter sends, blank is refused here, arrow keys bring earlier prompts back; and
 * the receipt line below it, which follows the newest prompt to the screen.
 */

const MAX_BYTES = 60_000; // the server takes messages of 64 KiB
const STEPS = ["sent", "accepted", "shown"];
const REACHED = { waiting: 0, sent: 1, accepted: 2, applied: 2, shown: 3 };

/** Say in words where a prompt is. */
export function describe(entry) {
  switch (entry.state) {
    case "waiting":
      return "Waiting for the stream";
    case "sent":
      return "Sent";
    case "accepted":
    case "applied":
      return "Accepted";
    case "shown":
      return entry.latencyMs === null
        ? "On screen"
        : `On screen after ${Math.round(entry.latencyMs).toLocaleString("en")} ms`;
    case "superseded":
      return "Replaced by a newer prompt";
    case "rejected":
      return `Refused: ${entry.message}`;
  }
}

export class PromptBox extends EventTarget {
  #form;
  #input;
  #receipt;
  #log;
  #recalled = null; // how many prompts back the arrow keys have gone

  /** Fires `submit` with the text. */
  constructor(form, receipt, log) {
    super();
    this.#form = form;
    this.#input = form.querySelector("textarea");
    this.#receipt = receipt;
    this.#log = log;
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
    this.dispatchEvent(new CustomEvent("submit", { detail: text.trim() }));
    return true;
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
    const texts = [...new Set(this.#log.entries.map(({ text }) => text).reverse())];
    const position = (this.#recalled ?? 0) + step;
    if (position < 0 || position > texts.length) return;
    event.preventDefault();
    this.#recalled = position || null;
    this.fill(position ? texts[position - 1] : "");
  }

  #showReceipt(entry) {
    if (entry !== this.#log.entries.at(-1)) return;
    if (entry.state === "rejected" && !this.#input.value) {
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
