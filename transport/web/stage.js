/**
 * What the page says about the connection: status, the panel over the picture, title, announcement.
 */

const STAGES = {
  weights: "Loading the model",
  engine: "Starting the engine",
  compile: "Compiling",
  "warm-up": "Trying the first pictures",
};

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;

/** Return label, text, button and progress of the panel for one state. */
function wording({ state, stage, progress, position, etaS, failures, reason, afterMs }) {
  switch (state) {
    case "connecting":
      return { label: "Connecting", text: "Making the first pictures.", busy: true };
    case "warming": {
      const text = sentence(STAGES[stage] ?? (stage || "The server is getting ready"));
      return { label: "Warming up", text, busy: true, progress };
    }
    case "queued": {
      const wait = etaS ? `, about ${Math.ceil(etaS)} s` : "";
      return { label: "In the queue", text: `Place ${position}${wait}.`, busy: true };
    }
    case "live":
      return { label: "Live" };
    case "paused":
      return { label: "Paused", button: "Resume" };
    case "reconnecting": {
      const button = failures > 1 ? "Try now" : undefined;
      const text = sentence(reason ?? "The connection was lost");
      return { label: "Reconnecting", text, busy: true, button };
    }
    case "ended":
      return { label: "Ended", text: reason, button: "Start again" };
    case "error": {
      const again = afterMs ? ` Trying again in ${Math.ceil(afterMs / 1000)} s.` : "";
      return { label: "Not connected", text: sentence(reason) + again, button: "Try again" };
    }
  }
}

export class Stage extends EventTarget {
  #root;
  #prompt = "";
  #label = "Connecting";

  /** `root` is the body. Fires `press` with the state when the panel's button is pressed. */
  constructor(root) {
    super();
    this.#root = root;
    this.#part("panel-button").addEventListener("click", () => {
      this.dispatchEvent(new CustomEvent("press", { detail: this.state }));
    });
  }

  get state() {
    return this.#root.dataset.state;
  }

  /** Show the state of a `state` event of the connection. */
  show(detail) {
    const { label, text = "", button = "", busy = false, progress } = wording(detail);
    const changed = label !== this.#label;
    this.#label = label;
    this.#root.dataset.state = detail.state;
    this.#part("status").textContent = label;
    this.#part("panel-title").textContent = label;
    this.#part("panel-text").textContent = text;
    this.#part("panel-button").textContent = button;
    this.#part("panel-button").hidden = !button;
    this.#part("panel-busy").hidden = !busy || progress !== undefined;
    this.#part("panel-progress").hidden = progress === undefined;
    this.#part("panel-progress").value = progress ?? 0;
    this.#title();
    if (changed) this.#part("announcement").textContent = `${label}. ${text}`;
  }

  /** Show which prompt the picture follows. */
  caption(text) {
    this.#prompt = text;
    this.#part("caption").textContent = text;
    this.#title();
  }

  /** Say whether pictures keep coming. */
  stalled(yes) {
    this.#root.toggleAttribute("data-stalled", yes);
    if (this.state === "live") this.#part("status").textContent = yes ? "Waiting" : "Live";
  }

  #title() {
    const first = this.state === "live" && this.#prompt ? this.#prompt : this.#label;
    document.title = `${first} · streamgen`;
  }

  #part(id) {
    return document.getElementById(id);
  }
}
