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
