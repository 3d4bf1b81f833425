/**
 * What became of each prompt, and of each going back: waiting (no session yet), sent, accepted,
 * applied (its frames are on their way), shown, superseded, rejected. Prompts that others gave are
 * learnt from the stream. No DOM here; fires `change` with the entry, and `rewound`
 * {toChunk, chunk}.
 */

const MAX_DRAWS = 128; // frames remembered, to date a prompt whose receipt comes after its picture
const OPEN = ["waiting", "sent", "accepted", "applied"];
const ON_SCREEN = ["applied", "shown"];
const idPrefix = Math.random().toString(36).slice(2, 8);
let made = 0;

/** Return a name for a message that no other message of this page has. */
export function newId() {
  made += 1;
  return `${idPrefix}-${made}`;
}

/** Return the message that asks for what an entry wants. */
export function messageOf({ id, kind, text, transition, toChunk }) {
  if (kind === "rewind") return { type: "session.rewind", event_id: id, to_chunk: toChunk };
  const interaction = { event_id: id, event: { prompt: text } };
  if (transition) interaction.transition = transition;
  return { type: "session.interaction", interaction };
}

/** Return a prompt of the protocol, a text or weighted texts, as one line. */
export function promptText(prompt) {
  if (typeof prompt === "string") return prompt;
  const sum = prompt.reduce((total, { weight }) => total + weight, 0);
  const part = ({ text, weight }) => `${text} (${Math.round((weight / sum) * 100)} %)`;
  return prompt.map(part).join(" + ");
}

export class PromptLog extends EventTarget {
  entries = []; // oldest first
  current = null; // the entry of the picture on screen
  #draws = []; // [{index, at, ptsUs}], ascending
  #opened = null; // the entry whose text opened the present session

  /** Add a prompt; `transition` is the protocol's, or null. Return its entry. */
  add(text, transition = null) {
    return this.#add({ kind: "prompt", text, transition });
  }

  /** Add a going back to the end of a chunk, which was shown at `atUs`. Return its entry. */
  addRewind(toChunk, atUs) {
    return this.#add({ kind: "rewind", text: this.textAt(toChunk), toChunk, atUs });
  }

  /** Begin with the past of another session that this one was forked from, until `chunk`. */
  inherit(log, chunk) {
    const past = log.entries.filter((entry) => this.#isPast(entry) && entry.chunk <= chunk);
    this.entries = past.map((entry) => ({ ...entry, state: "shown" }));
    this.current = this.entries.at(-1) ?? null;
    for (const entry of this.entries) this.#change(entry);
  }

  /** The newest entry that nobody refused: what the picture should become. */
  get wanted() {
    const void_ = ["rejected", "superseded"];
    return this.entries.findLast(({ state, undone }) => !undone && !void_.includes(state));
  }

  /** Return the text that was on screen in `chunk`. */
  textAt(chunk) {
    const past = this.entries.filter((entry) => this.#isPast(entry) && entry.chunk <= chunk);
    return (past.at(-1) ?? this.current)?.text ?? "";
  }

  /** Whether the session can go back to where this entry began. */
  canGoBack(entry) {
    return entry.state === "shown" && this.#isPast(entry) && !entry.gone;
  }

  /** Chunks until this one are not kept by the server any more. */
  markGone(chunk) {
    for (const entry of this.entries) {
      if (this.#isPast(entry) && entry.chunk <= chunk) this.#set(entry, entry.state, { gone: true });
    }
  }

  /** Return the text that opens a session; the time on its way counts from `now`. */
  openWith(now) {
    this.#opened = this.wanted;
    if (this.#opened.state !== "shown") {
      this.#set(this.#opened, "sent", { sentAt: now, kind: "prompt" });
    }
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
    if (fresh && this.#opened) this.#openedFresh();
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
        return this.#applied(message.event_id, message.frame_index, message.chunk_index);
      case "session.interaction.superseded":
        return this.#answer(message, "superseded");
      case "session.interaction.rejected":
        return this.#answer(message, "rejected", { message: message.message ?? message.code });
      case "error":
        return this.#answer(message, "rejected", { message: message.message });
      case "video.chunk_metadata":
        this.#began(message);
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

  #add(facts) {
    const entry = {
      id: newId(),
      transition: null,
      state: "waiting",
      sentAt: null,
      revision: null,
      frameIndex: null,
      chunk: null, // the first one under it
      ptsUs: null,
      latencyMs: null,
      message: null,
      undone: false, // its chunks were left behind by going back before them
      gone: false, // the server does not keep its first chunk any more
      ...facts,
    };
    this.entries.push(entry);
    this.#change(entry);
    return entry;
  }

  #isPast(entry) {
    return ON_SCREEN.includes(entry.state) && entry.chunk !== null && !entry.undone;
  }

  #began({ started_event_ids, first_frame_index, generation_chunk_index, prompt }) {
    for (const id of started_event_ids ?? []) {
      this.#applied(id, first_frame_index, generation_chunk_index);
    }
    const on = this.entries.filter(({ state, undone }) => ON_SCREEN.includes(state) && !undone);
    const newest = on.at(-1);
    if (newest && newest.chunk === null) {
      this.#set(newest, newest.state, { chunk: generation_chunk_index });
    }
    const text = prompt === undefined ? newest?.text : promptText(prompt);
    if (newest?.text === text) return;
    // A prompt whose receipt was lost with a connection, or one that somebody else gave.
    const open = this.entries.findLast((entry) => OPEN.includes(entry.state) && entry.text === text);
    const entry = open ?? this.#add({ kind: "other", text });
    const facts = { frameIndex: first_frame_index, chunk: generation_chunk_index };
    this.#set(entry, "applied", facts);
  }

  #openedFresh() {
    this.#draws = [];
    const index = this.entries.indexOf(this.#opened);
    for (const [i, entry] of this.entries.entries()) {
      entry.gone = entry !== this.#opened;
      if (entry === this.#opened || !OPEN.includes(entry.state)) continue;
      // Receipts of the lost session will not come; a later prompt than the opening one goes again.
      this.#set(entry, i > index && entry.kind === "prompt" ? "waiting" : "superseded");
    }
    this.#opened.chunk = null;
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

  #applied(id, frameIndex, chunk) {
    const entry = this.#find(id);
    if (!entry || !OPEN.includes(entry.state) || entry.state === "applied") return entry;
    this.#set(entry, "applied", { frameIndex, chunk });
    if (entry.kind === "rewind") this.#undo(entry);
    if (this.#draws.some(({ index }) => index >= frameIndex)) this.#shown(entry);
    return entry;
  }

  #undo(rewind) {
    const { toChunk, chunk } = rewind;
    for (const entry of this.entries) {
      const left = this.#isPast(entry) && toChunk < entry.chunk && entry.chunk < chunk;
      if (left) this.#set(entry, entry.state, { undone: true });
    }
    this.dispatchEvent(new CustomEvent("rewound", { detail: { toChunk, chunk } }));
  }

  #shown(entry) {
    const first = this.#draws.find(({ index }) => index >= entry.frameIndex);
    const dated = first.at !== null && entry.sentAt !== null;
    const latencyMs = dated ? first.at - entry.sentAt : null;
    if (!entry.undone) this.current = entry;
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
