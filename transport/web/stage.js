/**
 * What the page says about the connection: status, the panel over the picture, title, announcement.
 */

const STALL_MS = 2500;
const STALL_CHECK_MS = 500;
const STAGES = {
  weights: "Loading the model",
  engine: "Starting the engine",
  compile: "Compiling",
  "warm-up": "Trying the first pictures",
  restart: "Starting the engine again",
};

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;

/** Say how long it takes until a place is free. */
function waiting(position, waitS) {
  if (position === undefined) return "All places are taken.";
  const before = position === 1 ? "One is before you" : `${position} are before you`;
  const wait = waitS ? `, about ${waitS < 90 ? `${Math.ceil(waitS)} s` : `${Math.round(waitS / 60)} min`}` : "";
  return `${position ? before : "You are next"}${wait}.`;
}

/** Return label, text, button and progress of the panel for one state. */
function wording(detail) {
  const { state, stage, progress, position, waitS, failures, reason, afterMs, watching } = detail;
  switch (state) {
    case "connecting": {
      const text = watching ? "Looking for the video." : "Making the first pictures.";
      return { label: "Connecting", text, busy: true };
    }
    case "warming": {
      const text = sentence(STAGES[stage] ?? (stage || "The server is getting ready"));
      return { label: "Warming up", text, busy: true, progress };
    }
    case "queued": {
      const text = waiting(position, waitS);
      const button = watching ? undefined : "Leave the queue";
      return { label: "In the queue", text, busy: true, button };
    }
    case "live":
      return { label: "Live" };
    case "paused":
      return { label: "Paused", button: watching ? undefined : "Resume" };
    case "blocked": {
      const text = "Your browser wants a click before it plays.";
      return { label: "Ready", text, button: "Click to play" };
    }
    case "reconnecting": {
      const button = failures > 1 ? "Try now" : undefined;
      const text = sentence(reason ?? "The connection was lost");
      return { label: "Reconnecting", text, busy: true, button };
    }
    case "ended":
      return { label: "Ended", text: reason, button: watching ? undefined : "Start again" };
    case "error": {
      const again = afterMs ? ` Trying again in ${Math.ceil(afterMs / 1000)} s.` : "";
      return { label: "Not connected", text: sentence(reason) + again, button: "Try again" };
    }
  }
}

export class Stage extends EventTarget {
  #root;
  #part;
  #detail = { state: "connecting" };
  #sawAt = 0;

  /**
   * `root` is the pane and `part(name)` finds what is in it; `signal` ends all. Fires `press` with
   * the state when the panel's button is pressed, and `change` when what is to be said of the
   * session is another.
   */
  constructor(root, part, signal) {
    super();
    this.#root = root;
    this.#part = part;
    part("panel-button").addEventListener("click", () => this.#fire("press", this.state));
    const check = () => this.#stalled(performance.now() - this.#sawAt > STALL_MS);
    const timer = setInterval(check, STALL_CHECK_MS);
    signal.addEventListener("abort", () => clearInterval(timer));
  }

  get state() {
    return this.#root.dataset.state;
  }

  /** The state in a word or two. */
  get label() {
    return this.#part("label").textContent;
  }

  /** The prompt that the picture follows. */
  get prompt() {
    return this.#part("caption").textContent;
  }

  /** What the panel says. */
  get text() {
    return this.#part("panel-text").textContent;
  }

  /** Show the state of a `state` event of the connection. */
  show(detail) {
    const { label, text = "", button = "", busy = false, progress } = wording(detail);
    this.#detail = detail;
    this.#root.dataset.state = detail.state;
    this.#part("label").textContent = label;
    this.#part("panel-title").textContent = label;
    this.#part("panel-text").textContent = text;
    this.#part("panel-button").textContent = button;
    this.#part("panel-button").hidden = !button;
    this.#part("panel-busy").hidden = !busy || progress !== undefined;
    this.#part("panel-progress").hidden = progress === undefined;
    this.#part("panel-progress").value = progress ?? 0;
    this.#fire("change");
  }

  /** Show which prompt the picture follows. */
  caption(text) {
    if (text === this.prompt) return;
    this.#part("caption").textContent = text;
    this.#part("caption").title = text;
    this.#fire("change");
  }

  /** A picture was seen. */
  saw(at) {
    this.#sawAt = at;
  }

  /** Say what the server trades while it cannot keep up; level 0: nothing. */
  overload({ level, action }) {
    this.#part("overload").hidden = !level;
    this.#part("overload").textContent = level ? sentence(action) : "";
  }

  #stalled(yes) {
    this.#root.toggleAttribute("data-stalled", yes);
    if (this.state !== "live") return;
    const label = yes ? "Waiting" : wording(this.#detail).label;
    if (label === this.label) return;
    this.#part("label").textContent = label;
    this.#fire("change");
  }

  #fire(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
