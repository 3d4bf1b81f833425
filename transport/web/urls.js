/**
 * Addresses, all relative to the page, so that the server can live under any path prefix.
 */

/** Return the absolute URL of `path` beside the page. */
export function httpUrl(path) {
  return new URL(path, document.baseURI);
}

/** Return the socket URL of `path` beside the page: `wss:` when the page came over TLS. */
export function socketUrl(path) {
  const url = new URL(path, document.baseURI);
  url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
  url.hash = "";
  return url;
}

/** Return the path, beside the page, of what a session offers: `view`, `whep`, `stream.mjpeg`. */
export function sessionPath(sessionId, what = "") {
  const path = `v1/realtime/sessions/${encodeURIComponent(sessionId)}`;
  return what ? `${path}/${what}` : path;
}

/** Return the URL of a session's media, with the token that an element cannot send otherwise. */
export function mediaUrl({ id, token }, what = "") {
  const url = httpUrl(sessionPath(id, what));
  url.searchParams.set("token", token);
  return url;
}

/** Return the address of the page for those who only watch a session. */
export function watchUrl({ id, token }) {
  const url = httpUrl(location.pathname.endsWith(".html") ? location.pathname : ".");
  url.search = new URLSearchParams({ watch: id, token });
  return url;
}
