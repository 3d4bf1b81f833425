/**
 * One WebSocket, kept alive: JSON out and in, pictures in, and a promise of its end.
 */

const TICK_MS = 5000;
const PING_MS = 15_000; // a proxy closes what is silent for a minute
const SILENCE_MS = 10_000; // after a ping; then the connection counts as dead
const ABNORMAL = 1006; // what a browser reports for a connection that was lost

export class Link {
  #socket;
  #timer;
  #heardAt = performance.now();
  #pingAt = null;
  #finish;

  /** Resolves with the close code. */
  closed = new Promise((resolve) => {
    this.#finish = resolve;
  });

  /** `opened()`, `message(object)` and `picture(ArrayBuffer)` are called as things happen. */
  constructor(url, { opened, message, picture }) {
    this.#socket = new WebSocket(url);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = opened;
    this.#socket.onmessage = ({ data }) => {
      this.#heardAt = performance.now();
      if (typeof data === "string") message(JSON.parse(data));
      else picture(data);
    };
    this.#socket.onclose = ({ code }) => this.#end(code);
    this.#timer = setInterval(() => this.#tick(performance.now()), TICK_MS);
  }

  /** Send one message; false when the connection is not open. */
  send(message) {
    if (this.#socket.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify(message));
    return true;
  }

  /** Close, and hear nothing more. */
  close(code = 1000) {
    this.#socket.onopen = this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
    this.#end(code);
  }

  /** A dead network says nothing, so ask; any answer will do. */
  #tick(now) {
    const asked = this.#pingAt !== null && this.#heardAt < this.#pingAt;
    if (asked && now - this.#pingAt > SILENCE_MS) this.close(ABNORMAL);
    else if (!asked && now - (this.#pingAt ?? 0) > PING_MS && this.send({ type: "session.ping" })) {
      this.#pingAt = now;
    }
  }

  #end(code) {
    clearInterval(this.#timer);
    this.#finish(code);
  }
}
