/**
 * The page: one live video that follows what is written under it, or two that part ways.
 */

import { Ambient } from "./ambient.js";
import { readSeed, SEED_HINT } from "./controls.js";
import { Pane } from "./pane.js";
import { FullScreen } from "./screen.js";
import { describeModel } from "./server.js";
import { copy } from "./share.js";
import { mediaUrl, watchUrl } from "./urls.js";

const MAX_PANES = 2;
const NOTICE_MS = 6000;
const NAMES = ["A", "B"];

const byId = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);
// A session that somebody else has, and that is only watched here.
const watched = asked.get("watch")
  ? { id: asked.get("watch"), token: asked.get("token") ?? "" }
  : null;

const ambient = new Ambient(byId("ambient"));
const fullScreen = new FullScreen();
const panes = []; // as they stand, left to right
let active = null; // the pane that the keyboard and the header are about
let numMade = 0;
let suggestions = [];
let noticeTimer = null;
let announced = "";

function notice(text) {
  byId("notice").textContent = text;
  byId("notice").classList.add("shown");
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => byId("notice").classList.remove("shown"), NOTICE_MS);
}

byId("notice").addEventListener("click", () => {
  if (getSelection().isCollapsed) byId("notice").classList.remove("shown"); // a link may be copied
});

/** Say in the header, the title and to screen readers how the active session fares. */
function tell() {
  const { state, label, prompt, text } = active.stage;
  document.body.dataset.state = document.querySelector("header").dataset.state = state;
  byId("status").textContent = label;
  byId("share").disabled = active.session === null;
  byId("download").hidden = !active.hasRecording;
  if (active.hasRecording) byId("download").href = mediaUrl(active.session, "recording.mp4");
  document.title = `${state === "live" && prompt ? prompt : label} · streamgen`;
  if (announced === label) return;
  announced = label;
  byId("announcement").textContent = `${label}. ${text}`;
}

function activate(pane) {
  active = pane;
  for (const other of panes) other.root.toggleAttribute("data-active", other === pane);
  tell();
}

function arrange() {
  document.body.dataset.panes = panes.length;
  panes.forEach((pane, i) => pane.setCompany(NAMES[i], panes.length < MAX_PANES));
}

function addPane() {
  numMade += 1;
  const pane = new Pane(numMade, { watched, via: asked.get("via") });
  pane.promptBox.suggest(suggestions);
  pane.addEventListener("frame", ({ detail: { picture, drawnAt } }) => {
    ambient.follow(picture, drawnAt, panes.indexOf(pane), panes.length);
  });
  pane.addEventListener("size", ({ detail: { width, height } }) => {
    document.body.style.setProperty("--aspect", width / height);
    byId("size").textContent = `${width} × ${height}`;
  });
  pane.addEventListener("change", () => pane === active && tell());
  pane.addEventListener("notice", ({ detail }) => notice(detail));
  pane.addEventListener("forked", ({ detail }) => fork(pane, detail));
  pane.addEventListener("close", () => close(pane));
  for (const type of ["focusin", "pointerdown"]) {
    pane.root.addEventListener(type, () => pane === active || activate(pane));
  }
  pane.root.querySelector("[data-part=full-screen]").addEventListener("click", () => {
    fullScreen.toggle();
  });
  panes.push(pane);
  byId("panes").append(pane.root);
  arrange();
  return pane;
}

function fork(parent, forked) {
  const pane = addPane();
  pane.openFork(parent, forked);
  activate(pane);
  notice("A second video goes on from here. Give it a prompt of its own.");
}

function close(pane) {
  if (panes.length === 1) return;
  pane.stop();
  pane.root.remove();
  panes.splice(panes.indexOf(pane), 1);
  arrange();
  activate(panes[0]);
}

fullScreen.addEventListener("change", ({ detail: full }) => {
  for (const { root } of panes) {
    const button = root.querySelector("[data-part=full-screen]");
    button.setAttribute("aria-label", full ? "Leave full screen" : "Full screen");
  }
});

byId("share").addEventListener("click", async () => {
  const link = watchUrl(active.session).href;
  const copied = await copy(link);
  notice(copied ? "Link copied. Whoever opens it watches along." : `The link to watch: ${link}`);
});

// By what is printed on them: letters work with Shift and Caps Lock too.
const KEYS = {
  " ": () => active.togglePause(),
  "/": () => active.promptBox.focus(),
  f: () => fullScreen.toggle(),
  d: () => active.fork(),
  ArrowLeft: () => active.lookBack(),
  1: () => activate(panes[0]),
  2: () => panes[1] && activate(panes[1]),
};

/** Whether the element under the keyboard has a use of its own for a key. */
function wants(element, key) {
  if (element.closest("textarea, input, select")) return true;
  return key === " " && element.closest("button, a") !== null;
}

addEventListener("keydown", (event) => {
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[key]) return;
  if (wants(event.target, key)) return;
  if (!event.repeat) KEYS[key]();
  event.preventDefault();
});

// A page that goes away frees its sessions at once; one that comes back from the cache starts anew.
addEventListener("pagehide", () => panes.forEach((pane) => pane.leave()));
addEventListener("pageshow", ({ persisted }) => {
  if (persisted) panes.forEach((pane) => pane.startFresh());
});

/** Wait until the page is looked at: a tab opened in the background makes no video. */
function visible() {
  if (!document.hidden) return Promise.resolve();
  return new Promise((resolve) => {
    document.addEventListener("visibilitychange", resolve, { once: true });
  });
}

async function open() {
  // The picture's place is there from the start; what the server suggests comes into it.
  document.body.toggleAttribute("data-watching", watched !== null);
  const pane = addPane();
  activate(pane);
  const [model] = await Promise.all([describeModel(), visible()]);
  byId("model").textContent = model.id ?? "";
  suggestions = model.suggestions;
  if (watched) {
    pane.watch();
    return;
  }
  pane.promptBox.suggest(suggestions);
  const written = asked.get("seed")?.trim() ?? "";
  const seed = readSeed(written);
  if (written && seed === null) {
    notice(`“${written.slice(0, 24)}” is no seed, a random one is used. ${SEED_HINT}`);
  }
  pane.open(asked.get("prompt")?.trim() || suggestions[0], seed);
}

open();
