/**
 * The page: a live video that follows what is written under it.
 */

import { Ambient } from "./ambient.js";
import { Connection } from "./connection.js";
import { Controls } from "./controls.js";
import { JpegPlayer } from "./player.js";
import { PromptBox } from "./promptbox.js";
import { PromptLog } from "./prompts.js";
import { FullScreen } from "./screen.js";
import { describeModel } from "./server.js";
import { Stage } from "./stage.js";
import { Stats } from "./stats.js";
import { clock, Timeline } from "./timeline.js";

const STALL_MS = 2500;
const NOTICE_MS = 6000;

const byId = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);

const log = new PromptLog();
const stage = new Stage(document.body);
const stats = new Stats(byId("stats"));
const ambient = new Ambient(byId("ambient"));
const fullScreen = new FullScreen();
const promptBox = new PromptBox(byId("prompt-form"), byId("receipt"), log);
const timeline = new Timeline(byId("timeline"), log);
const player = new JpegPlayer(byId("video"), (frameIndex, displayedAtMs) => {
  const ack = { type: "session.ack", frame_index: frameIndex };
  if (displayedAtMs !== undefined) ack.displayed_at_ms = displayedAtMs;
  connection.send(ack);
});
const connection = new Connection(openingSettings, player);
const controls = new Controls((message) => connection.send(message), byId("seed-form"));

let suggestions = [];
let lastDrawnAt = 0;
let noticeTimer = null;

function openingSettings() {
  const settings = { prompt: log.openWith(performance.now()) };
  if (controls.seed !== null) settings.seed = controls.seed;
  return settings;
}

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").classList.add("shown");
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => byId("notice").classList.remove("shown"), NOTICE_MS);
}

function sendPrompt(entry) {
  const now = performance.now();
  const event = { event_id: entry.id, event: { prompt: entry.text } };
  if (connection.send({ type: "session.interaction", interaction: event })) log.markSent(entry, now);
}

function submit(text) {
  sendPrompt(log.add(text));
  if (stage.state === "ended" || stage.state === "error") restart();
}

function restart() {
  if (!log.wanted) log.add(suggestions[0]);
  connection.start({ fresh: stage.state === "ended" });
}

function togglePause() {
  if (stage.state === "live" || stage.state === "paused") controls.setPaused(stage.state === "live");
}

function showState(detail) {
  stage.show(detail);
  const paused = detail.state === "paused";
  const playing = paused || detail.state === "live";
  byId("pause").setAttribute("aria-label", paused ? "Resume" : "Pause");
  byId("pause").setAttribute("aria-pressed", String(paused));
  for (const id of ["pause", "start-over", "new-seed"]) byId(id).disabled = !playing;
}

function heard(message) {
  const entry = log.heard(message);
  if (message.type === "session.stats") stats.heard(message);
  else if (message.type === "video.chunk_metadata") controls.sawSeed(message.seed);
  else if (message.type === "error" && !entry) heardError(message);
}

function heardError({ message, param }) {
  if (stage.state === "live" || stage.state === "paused") notice(message);
  else if (param?.startsWith("prompt")) log.openingRefused(message);
}

connection.addEventListener("state", ({ detail }) => showState(detail));
connection.addEventListener("message", ({ detail }) => heard(detail));
connection.addEventListener("session", ({ detail: { fresh, config } }) => {
  controls.sawSeed(config.seed);
  if (config.fps) stats.setNominal(config.fps);
  const unanswered = log.sessionBegan(fresh);
  if (unanswered) sendPrompt(unanswered);
});

player.addEventListener("frame", ({ detail }) => {
  lastDrawnAt = detail.drawnAt;
  stats.drew(detail.drawnAt);
  ambient.follow(detail.picture, detail.drawnAt);
  log.drew(detail);
  byId("clock").textContent = clock(detail.ptsUs);
});
player.addEventListener("size", ({ detail: { width, height } }) => {
  document.body.style.setProperty("--aspect", width / height);
  byId("size").textContent = `${width} × ${height}`;
});

log.addEventListener("change", () => stage.caption(log.current?.text ?? log.wanted?.text ?? ""));
promptBox.addEventListener("submit", ({ detail }) => submit(detail));
timeline.addEventListener("reuse", ({ detail }) => promptBox.fill(detail));
controls.addEventListener("nobody", () => notice("Not connected yet."));

stage.addEventListener("press", ({ detail: state }) => {
  if (state === "paused") togglePause();
  else if (state === "reconnecting") connection.hurry();
  else restart();
});
byId("pause").addEventListener("click", togglePause);
byId("start-over").addEventListener("click", () => controls.startOver());
byId("new-seed").addEventListener("click", () => controls.newSeed());
byId("full-screen").addEventListener("click", () => fullScreen.toggle());
fullScreen.addEventListener("change", ({ detail: full }) => {
  byId("full-screen").setAttribute("aria-label", full ? "Leave full screen" : "Full screen");
});

addEventListener("keydown", (event) => {
  const busy = event.target.closest("textarea, input, button, a");
  if (busy || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === " ") togglePause();
  else if (event.key === "f") fullScreen.toggle();
  else if (event.key === "/") promptBox.focus();
  else return;
  event.preventDefault();
});

setInterval(() => stage.stalled(performance.now() - lastDrawnAt > STALL_MS), 500);

// A page that goes away frees its session at once; one that comes back from the cache starts anew.
addEventListener("pagehide", () => connection.stop());
addEventListener("pageshow", ({ persisted }) => persisted && connection.start({ fresh: true }));

function offerSuggestions() {
  for (const text of suggestions) {
    const chip = document.createElement("button");
    chip.type = "button";
    chip.textContent = text;
    chip.dir = "auto";
    chip.addEventListener("click", () => promptBox.offer(text));
    byId("suggestions").append(chip);
  }
}

/** Wait until the page is looked at: a tab opened in the background makes no video. */
function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}

async function open() {
  showState({ state: "connecting" });
  const [model] = await Promise.all([describeModel(), visible()]);
  byId("model").textContent = model.id ?? "";
  suggestions = model.suggestions;
  offerSuggestions();
  const seed = Number(asked.get("seed") ?? NaN);
  if (Number.isInteger(seed)) controls.wantSeed(seed);
  log.add(asked.get("prompt")?.trim() || suggestions[0]);
  connection.start();
}

open();
