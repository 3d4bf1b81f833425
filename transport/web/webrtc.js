/**
 * WebRTC: the pictures over UDP into a video element; numbers and control come over the socket.
 */

import { makeVideo, playVideo, watchFrames } from "./frames.js";
import { Programme } from "./programme.js";
import { Source } from "./source.js";
import { mediaUrl } from "./urls.js";
import { WhepPeer } from "./whep.js";

const OVER = ["failed", "closed"];

export class WebRtcSource extends Source {
  static kind = "webrtc";
  static label = "WebRTC";
  static usable = "RTCPeerConnection" in window;
  #connection = new RTCPeerConnection();
  #peer = null;
  #programme = null;

  constructor() {
    super(makeVideo());
    this.#connection.ontrack = ({ track }) => {
      this.element.srcObject = new MediaStream([track]);
      this.play();
    };
    this.#connection.onconnectionstatechange = () => this.#stateChanged();
    watchFrames(this.element, (...frame) => this.#presented(...frame), this.signal);
    const seen = () => document.hidden || !this.element.paused || this.play();
    document.addEventListener("visibilitychange", seen, { signal: this.signal });
  }

  async start(session) {
    this.#programme = new Programme(session.fps);
    for (const message of session.announced) this.heard(message, performance.now());
    this.#connection.addTransceiver("video", { direction: "recvonly" });
    this.#peer = new WhepPeer(this.#connection, session.token);
    try {
      await this.#peer.connect(mediaUrl(session, "whep"), this.signal);
    } catch (error) {
      this.fail(error.message);
    }
  }

  heard(message, now) {
    this.#programme?.heard(message, now);
  }

  play() {
    if (this.element.srcObject) playVideo(this.element, () => this.fire("blocked"));
  }

  async measure() {
    for (const report of (await this.#connection.getStats()).values()) {
      if (report.type !== "inbound-rtp") continue;
      this.numBytes = report.bytesReceived + report.headerBytesReceived;
      this.numDropped = report.framesDropped ?? 0;
    }
  }

  stop() {
    super.stop();
    this.#peer?.leave();
    this.#connection.onconnectionstatechange = null;
    this.#connection.close();
  }

  #stateChanged() {
    const state = this.#connection.connectionState;
    if (state === "connected") this.opened();
    else if (OVER.includes(state)) this.fail("The WebRTC connection was lost");
  }

  #presented(now, metadata) {
    const facts = this.#programme.place(now, metadata);
    this.presented({ ...facts, drawnAt: now, wasHidden: false, picture: this.element });
  }
}
