/**
 * What became of each prompt: waiting (no session yet), sent, accepted, applied (its frames are on
 * their way), shown, superseded, rejected. No DOM here; fires `change` with the entry.
 */

const MAX_DRAWS = 128; // frames remembered, to date a prompt whose receipt comes after its picture
const OPEN = ["waiting", "sent", "accepted", "applied"];
const idPrefix = Math.random().toString(36).slice(2, 8);

export class PromptLog extends EventTarget {
  entries = []; // oldest first
  current = null; // the prompt of the picture on screen
  #draws = []; // [{index, at, ptsUs}], ascending
  #opened = null; // the entry whose text opened the present session

  /** Add a prompt; return its entry. */
  add(text) {
    const entry = {
      id: `${idPrefix}-${this.entries.length + 1}`,
      text,
      state: "waiting",
      sentAt: null,
      revision: null,
      frameIndex: null,
      ptsUs: null,
      latencyMs: null,
      message: null,
    };
    this.entries.push(entry);
    this.#change(entry);
    return entry;
  }

  /** The newest prompt that nobody refused: what the picture should become. */
  get wanted() {
    return this.entries.findLast((entry) => !["rejected", "superseded"].includes(entry.state));
  }

  /** Return the text that opens a session; the time on its way counts from `now`. */
  openWith(now) {
    this.#opened = this.wanted;
    if (this.#opened.state !== "shown") this.#set(this.#opened, "sent", { sentAt: now });
    return this.#opened.text;
  }

  /** The server refused to open a session with that text. */
  openingRefused(message) {
    if (this.#opened.state !== "shown") this.#set(this.#opened, "rejected", { message });
  }

  markSent(entry, now) {
    this.#set(entry, "sent", { sentAt: now });
  }

  /** A session began (`fresh`) or goes on; return the entry that still has to be sent, or null. */
  sessionBegan(fresh) {
    if (fresh) this.#openedFresh();
    const unanswered = this.entries.filter(({ state }) => state === "waiting" || state === "sent");
    const newest = unanswered.pop() ?? null;
    for (const entry of unanswered) this.#set(entry, "superseded");
    return newest;
  }

  /** Take note of a message of the server; return the entry it was about, or null. */
  heard(message) {
    switch (message.type) {
      case "session.interaction.queued":
        return this.#answer(message, "accepted", { revision: message.prompt_revision });
      case "session.interaction.applied":
        return this.#applied(message.event_id, message.frame_index);
      case "session.interaction.superseded":
        return this.#answer(message, "superseded");
      case "session.interaction.rejected":
        return this.#answer(message, "rejected", { message: message.message ?? message.code });
      case "error":
        return this.#answer(message, "rejected", { message: message.message });
      case "video.chunk_metadata":
        for (const id of message.started_event_ids ?? []) {
          this.#applied(id, message.first_frame_index);
        }
    }
    return null;
  }

  /** A frame became visible: `{index, ptsUs, drawnAt, wasHidden}`. */
  drew({ index, ptsUs, drawnAt, wasHidden }) {
    this.#draws.push({ index, at: wasHidden ? null : drawnAt, ptsUs });
    if (this.#draws.length > MAX_DRAWS) this.#draws.shift();
    for (const entry of this.entries) {
      if (entry.state === "applied" && entry.frameIndex <= index) this.#shown(entry);
    }
  }

  #openedFresh() {
    this.#draws = [];
    for (const entry of this.entries) {
      if (entry === this.#opened || !OPEN.includes(entry.state)) continue;
      // Receipts of the lost session will not come; a later prompt than the opening one goes again.
      const later = this.entries.indexOf(entry) > this.entries.indexOf(this.#opened);
      this.#set(entry, later ? "waiting" : "superseded");
    }
    if (this.#opened.state === "shown") this.current = this.#opened;
    else this.#set(this.#opened, "applied", { frameIndex: 0 });
  }

  #answer(message, state, facts = {}) {
    const entry = this.#find(message.event_id);
    if (entry && OPEN.includes(entry.state) && entry.state !== "applied") {
      this.#set(entry, state, facts);
    }
    return entry;
  }

  #applied(id, frameIndex) {
    const entry = this.#find(id);
    if (!entry || !OPEN.includes(entry.state)) return entry;
    this.#set(entry, "applied", { frameIndex });
    if (this.#draws.some(({ index }) => index >= frameIndex)) this.#shown(entry);
    return entry;
  }

  #shown(entry) {
    const first = this.#draws.find(({ index }) => index >= entry.frameIndex);
    const latencyMs = first.at === null ? null : first.at - entry.sentAt;
    this.current = entry;
    this.#set(entry, "shown", { latencyMs, ptsUs: first.ptsUs });
  }

  #find(id) {
    return this.entries.findLast((entry) => entry.id === id) ?? null;
  }

  #set(entry, state, facts = {}) {
    Object.assign(entry, facts, { state });
    this.#change(entry);
  }

  #change(entry) {
    this.dispatchEvent(new CustomEvent("change", { detail: entry }));
  }
}
