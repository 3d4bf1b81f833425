/**
 * One session on the page: its picture, its prompt box, its past and its figures.
 */

import { clock } from "./clock.js";
import { Controls } from "./controls.js";
import { Filmstrip } from "./filmstrip.js";
import { Forking } from "./forking.js";
import { build } from "./parts.js";
import { Playback } from "./playback.js";
import { PromptBox } from "./promptbox.js";
import { messageOf, PromptLog, promptText } from "./prompts.js";
import { offersRecording } from "./server.js";
import { Stage } from "./stage.js";
import { Stats } from "./stats.js";
import { Timeline } from "./timeline.js";
import { WayMenu } from "./waymenu.js";

const RESTARTED = "The engine was started again; the video goes on.";

export class Pane extends EventTarget {
  root;
  stage;
  promptBox;
  hasRecording = false;
  #part;
  #log = new PromptLog();
  #playback;
  #watching;
  #controls;
  #stats;
  #timeline;
  #film;
  #forking = new Forking(
    (message) => this.#playback.send(message),
    () => this.#enable(),
    (why) => this.#notice(`Not forked: ${why}`),
  );
  #marked = null; // the entry whose first tile is marked in the film
  #chunk = 0; // chunk of the picture
  #life = new AbortController(); // ends what the page's own events hold

  /**
   * `watched` {id, token} names a session that is only watched, or is null; `via` a way for the
   * pictures, or is null. Fires `frame` with each picture, `size`, `change` when its state, prompt
   * or session is another, `notice` with a text to be said, `forked` {message, atChunk} and `close`.
   */
  constructor(number, { watched, via }) {
    super();
    this.#watching = watched !== null;
    this.root = build(number);
    this.#part = (name) => this.root.querySelector(`[data-part="${name}"]`);
    const part = this.#part;
    this.stage = new Stage(this.root, part, this.#life.signal);
    this.promptBox = new PromptBox(
      part("prompt-form"),
      part("receipt"),
      this.root.querySelector(".how"),
      part("suggestions"),
      this.#log,
    );
    this.#timeline = new Timeline(part("timeline"), this.#log, this.#watching);
    this.#film = new Filmstrip(part("film"));
    const how = { watched, via };
    this.#playback = new Playback(part("video"), () => this.#opening(), how, this.#life.signal);
    this.#stats = new Stats(part("stats"), () => this.#playback.source);
    this.#controls = new Controls((message) => this.#playback.send(message), part("seed-form"));
    new WayMenu(part("via"), this.#playback);
    this.#listenToStream();
    this.#listenToPerson();
    this.stage.show({ state: "connecting" });
  }

  /** The session {id, token}, or null before there is one. */
  get session() {
    return this.#playback.session;
  }

  get playing() {
    return this.stage.state === "live" || this.stage.state === "paused";
  }

  /** Open a session that begins with `text`; `seed` may be null. */
  open(text, seed) {
    if (seed !== null) this.#controls.wantSeed(seed);
    this.#log.add(text);
    this.#playback.start();
  }

  /** Watch the session that somebody else has. */
  watch() {
    this.#playback.start();
  }

  /** Take up the session that was forked from another pane, with the past they share. */
  openFork(parent, { message, atChunk }) {
    const until = atChunk ?? parent.#chunk;
    this.#log.inherit(parent.#log, until);
    this.#film.inherit(parent.#film, until);
    this.root.style.setProperty("--aspect", parent.root.style.getPropertyValue("--aspect"));
    this.promptBox.choose(parent.promptBox);
    this.#playback.adopt(message, parent.#playback.picture);
    this.#playback.start();
  }

  /** Say how this pane is called, and whether another may be made. */
  setCompany(name, canFork) {
    this.#part("name").textContent = name;
    this.#forking.full = !canFork;
    this.#enable();
  }

  togglePause() {
    if (this.stage.state === "blocked") this.#playback.play();
    else if (this.playing && !this.#watching) this.#controls.setPaused(this.stage.state === "live");
  }

  /** Let a second session go on from here, or from the end of an earlier chunk. */
  fork(atChunk = null) {
    const obstacle = this.#forking.obstacle(this.#watching, this.playing);
    if (obstacle) this.#notice(`Not forked: ${obstacle}`);
    else this.#forking.ask(atChunk);
  }

  /** Lead the keyboard to the moments that can be gone back to. */
  lookBack() {
    this.#film.focus();
  }

  /** End the session, to come back perhaps. */
  leave() {
    this.#playback.stop();
  }

  /** Begin with a new session, after a return to a page that was left. */
  startFresh() {
    this.#playback.start({ fresh: true });
  }

  /** End the session; the pane is of no more use. */
  stop() {
    this.#stats.stop();
    this.#life.abort();
    this.leave();
  }

  #opening() {
    const settings = { prompt: this.#log.openWith(performance.now()) };
    if (this.#controls.seed !== null) settings.seed = this.#controls.seed;
    return settings;
  }

  #send(entry) {
    if (this.#playback.send(messageOf(entry))) this.#log.markSent(entry, performance.now());
  }

  #submit({ text, transition }) {
    this.#send(this.#log.add(text, transition));
    if (this.stage.state === "ended" || this.stage.state === "error") this.#restart();
  }

  #goBack(chunk, atUs) {
    if (this.playing && !this.#watching) this.#send(this.#log.addRewind(chunk, atUs));
  }

  #restart() {
    if (!this.#log.wanted && !this.#watching) this.#log.add(this.promptBox.suggestions[0]);
    this.#playback.start({ fresh: this.stage.state === "ended" });
  }

  #heard(message) {
    const asked = this.#forking.answered(message);
    if (asked) {
      this.#forkAnswered(message, asked);
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

  #forkAnswered(message, { atChunk }) {
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
    this.stage.show({ ...detail, watching: this.#watching });
    const paused = detail.state === "paused";
    this.#part("pause").setAttribute("aria-label", paused ? "Resume" : "Pause");
    this.#part("pause").setAttribute("aria-pressed", String(paused));
    this.#enable();
  }

  #enable() {
    const steered = this.playing && !this.#watching;
    for (const name of ["pause", "start-over", "new-seed"]) this.#part(name).disabled = !steered;
    this.#part("fork").disabled = this.#forking.obstacle(this.#watching, this.playing) !== null;
    this.#part("fork").setAttribute("aria-busy", String(this.#forking.busy));
  }

  #drew(detail) {
    this.stage.saw(detail.drawnAt);
    this.#chunk = detail.chunk;
    this.#stats.drew(detail.drawnAt);
    this.#film.saw(detail);
    this.#log.drew(detail);
    this.#part("clock").textContent = clock(detail.ptsUs);
    const picture = this.#film.newest ?? detail.picture; // drawing the small one costs less
    this.dispatchEvent(new CustomEvent("frame", { detail: { ...detail, picture } }));
  }

  #listenToStream() {
    this.#playback.addEventListener("state", ({ detail }) => this.#showState(detail));
    this.#playback.addEventListener("message", ({ detail }) => this.#heard(detail));
    this.#playback.addEventListener("gone", () => this.#forking.forget());
    this.#playback.addEventListener("session", ({ detail: { fresh, config } }) => {
      this.#lookForRecording();
      this.#controls.sawSeed(config.seed);
      this.#forking.forget();
      this.stage.overload({ level: 0 });
      if (fresh) this.#film.clear();
      if (config.fps) this.#stats.setNominal(config.fps);
      if (!this.#log.wanted && config.prompt) this.stage.caption(promptText(config.prompt));
      const unanswered = this.#log.sessionBegan(fresh);
      if (unanswered) this.#send(unanswered);
    });
    this.#playback.addEventListener("frame", ({ detail }) => this.#drew(detail));
    this.#playback.addEventListener("size", ({ detail: { width, height } }) => {
      this.root.style.setProperty("--aspect", width / height);
      this.dispatchEvent(new CustomEvent("size", { detail: { width, height } }));
    });
    this.#log.addEventListener("change", ({ detail: { state, kind, latencyMs } }) => {
      if (state === "shown" && kind === "prompt") this.#stats.saw(latencyMs);
      if (this.#log.current !== this.#marked) this.#film.mark();
      this.#marked = this.#log.current;
      this.stage.caption(this.#log.current?.text ?? this.#log.wanted?.text ?? "");
    });
    this.#log.addEventListener("rewound", ({ detail: { toChunk, chunk } }) => {
      this.#film.rewound(toChunk, chunk);
    });
    this.stage.addEventListener("change", () => this.dispatchEvent(new CustomEvent("change")));
  }

  async #lookForRecording() {
    this.hasRecording = await offersRecording(this.session);
    this.dispatchEvent(new CustomEvent("change"));
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
      if (state === "paused" || state === "blocked") this.togglePause();
      else if (state === "reconnecting") this.#playback.hurry();
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
    this.#playback.stop();
    this.#showState({ state: "ended", reason: "You left the queue." });
  }

  #notice(text) {
    this.dispatchEvent(new CustomEvent("notice", { detail: text }));
  }
}
