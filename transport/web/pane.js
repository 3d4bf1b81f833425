/**
 * One session on the page: its picture, its prompt box, its past and its figures.
 */

import { clock } from "./clock.js";
import { Connection } from "./connection.js";
import { Controls } from "./controls.js";
import { Filmstrip } from "./filmstrip.js";
import { build } from "./parts.js";
import { JpegPlayer } from "./player.js";
import { PromptBox } from "./promptbox.js";
import { newId, PromptLog } from "./prompts.js";
import { Stage } from "./stage.js";
import { Stats } from "./stats.js";
import { Timeline } from "./timeline.js";

const STALL_MS = 2500;
const STALL_CHECK_MS = 500;
const RESTARTED = "The engine was started again; the video goes on.";

export class Pane extends EventTarget {
  root;
  stage;
  promptBox;
  #part;
  #log = new PromptLog();
  #player;
  #connection;
  #controls;
  #stats;
  #timeline;
  #film;
  #forking = null; // {id, atChunk} of the fork asked for
  #clock = 0; // media time of the picture, microseconds
  #chunk = 0; // chunk of the picture
  #drawnAt = 0;
  #stallTimer;
  #life = new AbortController(); // ends what the page's own events hold

  /**
   * Fires `frame` with each picture, `size`, `change` when its state or prompt is another, `notice`
   * with a text to be said, `forked` {message, atChunk} and `close`.
   */
  constructor(number) {
    super();
    this.root = build(number);
    this.#part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    const part = this.#part;
    this.stage = new Stage(this.root, part);
    this.promptBox = new PromptBox(
      part("prompt-form"),
      part("receipt"),
      this.root.querySelector(".how"),
      part("suggestions"),
      this.#log,
    );
    this.#stats = new Stats(part("stats"));
    this.#timeline = new Timeline(part("timeline"), this.#log);
    this.#film = new Filmstrip(part("film"));
    const { signal } = this.#life;
    this.#player = new JpegPlayer(part("video"), (...args) => this.#acknowledge(...args), signal);
    this.#connection = new Connection(() => this.#opening(), this.#player, signal);
    this.#controls = new Controls((message) => this.#connection.send(message), part("seed-form"));
    this.#listenToStream();
    this.#listenToPerson();
    this.#stallTimer = setInterval(() => {
      this.stage.stalled(performance.now() - this.#drawnAt > STALL_MS);
    }, STALL_CHECK_MS);
    this.stage.show({ state: "connecting" });
  }

  get playing() {
    return this.stage.state === "live" || this.stage.state === "paused";
  }

  /** Open a session that begins with `text`; `seed` may be null. */
  open(text, seed) {
    if (seed !== null) this.#controls.wantSeed(seed);
    this.#log.add(text);
    this.#connection.start();
  }

  /** Take up the session that was forked from another pane, with the past they share. */
  openFork(parent, { message, atChunk }) {
    const until = atChunk ?? parent.#chunk;
    this.#log.inherit(parent.#log, until);
    this.#film.inherit(parent.#film, until);
    this.#player.begin(parent.#part("video"));
    this.root.style.setProperty("--aspect", parent.root.style.getPropertyValue("--aspect"));
    this.promptBox.choose(parent.promptBox);
    this.#connection.adopt(message);
    this.#connection.start();
  }

  /** Say how this pane is called, and whether another may be made. */
  setCompany(name, canFork) {
    this.#part("name").textContent = name;
    this.#part("fork").dataset.full = String(!canFork);
    this.#enable();
  }

  togglePause() {
    if (this.playing) this.#controls.setPaused(this.stage.state === "live");
  }

  /** Let a second session go on from here, or from the end of an earlier chunk. */
  fork(atChunk = null) {
    if (this.#part("fork").disabled) return;
    this.#forking = { id: newId(), atChunk };
    const asked = { type: "session.fork", event_id: this.#forking.id };
    if (!this.#connection.send(atChunk === null ? asked : { ...asked, at_chunk: atChunk })) {
      this.#forking = null;
    }
    this.#enable();
  }

  /** Lead the keyboard to the moments that can be gone back to. */
  lookBack() {
    this.#film.focus();
  }

  /** End the session, to come back perhaps. */
  leave() {
    this.#connection.stop();
  }

  /** Begin with a new session, after a return to a page that was left. */
  startFresh() {
    this.#connection.start({ fresh: true });
  }

  /** End the session; the pane is of no more use. */
  stop() {
    clearInterval(this.#stallTimer);
    this.#stats.stop();
    this.#life.abort();
    this.leave();
  }

  #opening() {
    const settings = { prompt: this.#log.openWith(performance.now()) };
    if (this.#controls.seed !== null) settings.seed = this.#controls.seed;
    return settings;
  }

  #acknowledge(index, displayedAtMs) {
    const ack = { type: "session.ack", frame_index: index };
    if (displayedAtMs !== undefined) ack.displayed_at_ms = displayedAtMs;
    this.#connection.send(ack);
  }

  #send(entry) {
    const { id, kind, text, transition, toChunk } = entry;
    const interaction = { event_id: id, event: { prompt: text } };
    if (transition) interaction.transition = transition;
    const message =
      kind === "rewind"
        ? { type: "session.rewind", event_id: id, to_chunk: toChunk }
        : { type: "session.interaction", interaction };
    if (this.#connection.send(message)) this.#log.markSent(entry, performance.now());
  }

  #submit({ text, transition }) {
    this.#send(this.#log.add(text, transition));
    if (this.stage.state === "ended" || this.stage.state === "error") this.#restart();
  }

  #goBack(chunk, atUs) {
    if (this.playing) this.#send(this.#log.addRewind(chunk, atUs));
  }

  #restart() {
    if (!this.#log.wanted) this.#log.add(this.promptBox.suggestions[0]);
    this.#connection.start({ fresh: this.stage.state === "ended" });
  }

  #heard(message) {
    if (message.event_id && message.event_id === this.#forking?.id) {
      this.#forkAnswered(message);
      return;
    }
    const entry = this.#log.heard(message);
    if (message.type === "session.stats") this.#stats.heard(message);
    else if (message.type === "video.chunk_metadata") this.#controls.sawSeed(message.seed);
    else if (message.type === "session.overload") this.stage.overload(message);
    else if (message.type === "session.worker_restarted") this.#notice(RESTARTED);
    else if (message.type === "error" && !entry) this.#heardError(message);
    else if (message.type === "error" && message.param === "to_chunk") this.#notKept(entry.toChunk);
  }

  #forkAnswered(message) {
    const { atChunk } = this.#forking;
    this.#forking = null;
    this.#enable();
    if (message.type === "session.forked") {
      this.dispatchEvent(new CustomEvent("forked", { detail: { message, atChunk } }));
    } else {
      this.#notice(`Not forked: ${message.message ?? "overtaken by something newer"}`);
      if (message.param === "at_chunk") this.#notKept(atChunk);
    }
  }

  #heardError({ message, param }) {
    if (this.playing) this.#notice(message);
    else if (param?.startsWith("prompt")) this.#log.openingRefused(message);
  }

  /** The server does not keep this chunk and those before it. */
  #notKept(chunk) {
    this.#log.markGone(chunk);
    this.#film.gone(chunk);
  }

  #showState(detail) {
    this.stage.show(detail);
    const paused = detail.state === "paused";
    this.#part("pause").setAttribute("aria-label", paused ? "Resume" : "Pause");
    this.#part("pause").setAttribute("aria-pressed", String(paused));
    this.#enable();
  }

  #enable() {
    for (const name of ["pause", "start-over", "new-seed"]) this.#part(name).disabled = !this.playing;
    const fork = this.#part("fork");
    fork.disabled = !this.playing || this.#forking !== null || fork.dataset.full === "true";
    fork.setAttribute("aria-busy", String(this.#forking !== null));
  }

  #drew(detail) {
    this.#drawnAt = detail.drawnAt;
    this.#clock = detail.ptsUs;
    this.#chunk = detail.chunk;
    this.#stats.drew(detail.drawnAt);
    this.#film.saw(detail);
    const before = this.#log.current;
    this.#log.drew(detail);
    if (this.#log.current !== before) this.#film.mark();
    this.#part("clock").textContent = clock(detail.ptsUs);
    this.dispatchEvent(new CustomEvent("frame", { detail }));
  }

  #listenToStream() {
    this.#connection.addEventListener("state", ({ detail }) => this.#showState(detail));
    this.#connection.addEventListener("message", ({ detail }) => this.#heard(detail));
    this.#connection.addEventListener("session", ({ detail: { fresh, config } }) => {
      this.#controls.sawSeed(config.seed);
      this.#forking = null;
      this.stage.overload({ level: 0 });
      if (fresh) this.#film.clear();
      if (config.fps) this.#stats.setNominal(config.fps);
      const unanswered = this.#log.sessionBegan(fresh);
      if (unanswered) this.#send(unanswered);
    });
    this.#player.addEventListener("frame", ({ detail }) => this.#drew(detail));
    this.#player.addEventListener("size", ({ detail: { width, height } }) => {
      this.root.style.setProperty("--aspect", width / height);
      this.dispatchEvent(new CustomEvent("size", { detail: { width, height } }));
    });
    this.#log.addEventListener("change", () => {
      this.stage.caption(this.#log.current?.text ?? this.#log.wanted?.text ?? "");
    });
    this.#log.addEventListener("rewound", ({ detail }) => this.#film.rewound(detail.toChunk));
    this.stage.addEventListener("change", () => this.dispatchEvent(new CustomEvent("change")));
  }

  #listenToPerson() {
    this.promptBox.addEventListener("submit", ({ detail }) => this.#submit(detail));
    this.#timeline.addEventListener("reuse", ({ detail }) => this.promptBox.fill(detail));
    this.#timeline.addEventListener("back", ({ detail }) => this.#goBack(detail.chunk, detail.ptsUs));
    this.#timeline.addEventListener("fork", ({ detail }) => this.fork(detail.chunk));
    this.#film.addEventListener("back", ({ detail }) => this.#goBack(detail.chunk, detail.ptsUs));
    this.#film.addEventListener("fork", ({ detail }) => this.fork(detail.chunk));
    this.#controls.addEventListener("nobody", () => this.#notice("Not connected yet."));
    this.stage.addEventListener("press", ({ detail: state }) => {
      if (state === "paused") this.togglePause();
      else if (state === "reconnecting") this.#connection.hurry();
      else if (state === "queued") this.#leaveQueue();
      else this.#restart();
    });
    this.#part("pause").addEventListener("click", () => this.togglePause());
    this.#part("start-over").addEventListener("click", () => this.#controls.startOver());
    this.#part("new-seed").addEventListener("click", () => this.#controls.newSeed());
    this.#part("fork").addEventListener("click", () => this.fork());
    this.#part("close").addEventListener("click", () => this.dispatchEvent(new CustomEvent("close")));
  }

  #leaveQueue() {
    this.#connection.stop();
    this.#showState({ state: "ended", reason: "You left the queue." });
  }

  #notice(text) {
    this.dispatchEvent(new CustomEvent("notice", { detail: text }));
  }
}
