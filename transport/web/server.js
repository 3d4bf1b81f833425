/**
 * What the page asks the server over HTTP: whether it is ready, what its model suggests, and
 * whether a session is recorded.
 */

import { httpUrl, mediaUrl } from "./urls.js";

const PROBE_TIMEOUT_MS = 5000;

const BUILT_IN_SUGGESTIONS = [
  "a red ball bounces on the grass at night",
  "a blue star drifts over the sea at sunset",
  "a yellow heart spins in the desert",
  "a green box rests in the snow",
];

async function getJson(url) {
  const abort = new AbortController();
  const timer = setTimeout(() => abort.abort(), PROBE_TIMEOUT_MS);
  try {
    const response = await fetch(url, { cache: "no-store", signal: abort.signal });
    const body = await response.json().catch(() => null);
    return { status: response.status, body };
  } finally {
    clearTimeout(timer);
  }
}

/**
 * Ask `/readyz` once.
 * Returns `{state: "ready"}`, `{state: "warming", stage, progress}` or `{state: "away", reason}`.
 */
export async function probe() {
  let answer;
  try {
    answer = await getJson(httpUrl("readyz"));
  } catch {
    return { state: "away", reason: "The server cannot be reached." };
  }
  const { status, body } = answer;
  if (status === 503 && body?.status === "warming") {
    return { state: "warming", stage: body.stage, progress: body.progress };
  }
  // A busy engine answers again; sessions that live can be taken up meanwhile.
  if (status === 503 && body?.status === "busy") return { state: "ready" };
  if (status === 503 && body?.status) return { state: "away", reason: "The engine is not running." };
  // A proxy whose server is away answers 502 or 504, or 503 with a page of its own.
  if (status >= 502) return { state: "away", reason: "The server cannot be reached." };
  return { state: "ready" };
}

/** Return the first model's entry of `/v1/models`, with `suggestions` always filled. */
export async function describeModel() {
  let model = {};
  try {
    const { status, body } = await getJson(httpUrl("v1/models"));
    if (status === 200) model = body?.data?.[0] ?? {};
  } catch {
    // The page works without the list; the socket will say what is wrong, if anything is.
  }
  const listed = model.suggestions?.filter((text) => typeof text === "string" && text.trim());
  return { ...model, suggestions: listed?.length ? listed : BUILT_IN_SUGGESTIONS };
}

/** Say whether the recording of a session {id, token} can be had. */
export async function offersRecording(session) {
  try {
    const { body } = await getJson(mediaUrl(session));
    return Boolean(body?.urls?.recording);
  } catch {
    return false; // the stream itself will show that the server is away
  }
}
