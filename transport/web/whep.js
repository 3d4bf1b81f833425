/**
 * WHEP, the standard way to watch over WebRTC: one POST, trickled candidates, one DELETE.
 */

import { httpUrl } from "./urls.js";

const TRICKLE_MS = 50; // candidates found in so short a time go together

const LINK = /<([^>]*)>((?:\s*;\s*[\w-]+=(?:"[^"]*"|[^",;]*))*)/g;
const PARAMETER = /([\w-]+)=(?:"([^"]*)"|([^",;\s]*))/g;

/** Return the ICE servers of a `Link` header, as RTCPeerConnection takes them. */
export function iceServersOf(header) {
  const servers = [];
  for (const [, urls, rest] of (header ?? "").matchAll(LINK)) {
    const found = [...rest.matchAll(PARAMETER)];
    const { rel, username, credential } = Object.fromEntries(
      found.map(([, name, quoted, bare]) => [name, quoted ?? bare]),
    );
    if (rel === "ice-server") servers.push(username ? { urls, username, credential } : { urls });
  }
  return servers;
}

/** Say why the server refused. */
async function refusal(response) {
  const body = await response.json().catch(() => null);
  return body?.error?.message ?? `The server answered ${response.status}`;
}

export class WhepPeer {
  #connection;
  #resource = null; // URL of this peer at the server
  #etag = null;
  #token;
  #candidates = [];
  #timer = null;

  constructor(connection, token) {
    this.#connection = connection;
    this.#token = token;
    connection.onicecandidate = ({ candidate }) => this.#found(candidate);
  }

  /**
   * Offer at `url` and take the answer; throws an Error that says why not. Nothing is gathered
   * before the answer: it names the ICE servers, and the server can be reached without ours.
   */
  async connect(url, signal) {
    const offer = await this.#connection.createOffer();
    const headers = { "content-type": "application/sdp", accept: "application/sdp" };
    const response = await fetch(url, { method: "POST", headers, body: offer.sdp, signal });
    if (response.status !== 201) throw new Error(await refusal(response));
    this.#resource = this.#withToken(new URL(response.headers.get("location"), response.url));
    this.#etag = response.headers.get("etag");
    const iceServers = iceServersOf(response.headers.get("link"));
    const answer = await response.text();
    if (signal.aborted) {
      this.leave();
      return;
    }
    this.#connection.setConfiguration({ iceServers });
    await this.#connection.setLocalDescription(offer);
    await this.#connection.setRemoteDescription({ type: "answer", sdp: answer });
  }

  /** Tell the server that nobody watches any more; works while the page goes away too. */
  leave() {
    clearTimeout(this.#timer);
    if (!this.#resource) return;
    // A server that is gone knows already.
    fetch(this.#resource, { method: "DELETE", keepalive: true }).catch(() => {});
    this.#resource = null;
  }

  #withToken(url) {
    const own = httpUrl(".");
    // Behind a proxy that strips the prefix the server cannot know it.
    if (!url.pathname.startsWith(own.pathname) && url.origin === own.origin) {
      url = httpUrl(url.pathname.slice(1) + url.search);
    }
    if (!url.searchParams.has("token")) url.searchParams.set("token", this.#token);
    return url;
  }

  #found(candidate) {
    this.#candidates.push(candidate?.candidate || null); // null: there are no more
    this.#timer ??= setTimeout(() => this.#trickle(), TRICKLE_MS);
  }

  async #trickle() {
    this.#timer = null;
    const found = this.#candidates.splice(0);
    const sdp = this.#connection.localDescription?.sdp;
    if (!this.#resource || !sdp) return;
    const line = (name) => sdp.match(new RegExp(`^a=${name}:.*$`, "m"))[0];
    const fragment = [
      line("ice-ufrag"),
      line("ice-pwd"),
      sdp.match(/^m=.*$/m)[0],
      line("mid"),
      ...found.map((text) => (text ? `a=${text}` : "a=end-of-candidates")),
      "",
    ].join("\r\n");
    const headers = { "content-type": "application/trickle-ice-sdpfrag" };
    if (this.#etag) headers["if-match"] = this.#etag;
    const sent = fetch(this.#resource, { method: "PATCH", headers, body: fragment });
    await sent.catch(() => {}); // it connects without ours, or not, which is noticed
  }
}
