/**
 * The last resort: a picture that the browser itself replaces (MJPEG over HTTP).
 *
 * No event tells of a new frame, so a few pixels are looked at on the screen's beat.
 */

import { Programme } from "./programme.js";
import { Source } from "./source.js";
import { mediaUrl } from "./urls.js";

const LOOK_MS = 25;
const PROBE_PX = 12;
const NOTHING = "data:,";

export class MjpegSource extends Source {
  static kind = "mjpeg";
  static label = "HTTP MJPEG";
  static usable = true;
  #programme = null;
  #probe = new OffscreenCanvas(PROBE_PX, PROBE_PX).getContext("2d", { willReadFrequently: true });
  #before = null;
  #lookedAt = 0;
  #changedAt = 0;

  constructor() {
    super(document.createElement("img"));
    this.element.alt = "";
    this.element.addEventListener("error", () => this.fail("The picture does not load"));
  }

  start(session) {
    this.#programme = new Programme(session.fps);
    for (const message of session.announced) this.heard(message, performance.now());
    this.element.src = mediaUrl(session, "stream.mjpeg");
    this.opened(); // no event tells when; `error` comes when it does not
    const look = (now) => {
      if (this.signal.aborted) return;
      if (this.element.naturalWidth && now - this.#lookedAt >= LOOK_MS) this.#look(now);
      requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  }

  heard(message, now) {
    this.#programme?.heard(message, now);
  }

  stop() {
    super.stop();
    this.element.src = NOTHING; // else the browser goes on receiving
  }

  #look(now) {
    this.#lookedAt = now;
    this.#probe.drawImage(this.element, 0, 0, PROBE_PX, PROBE_PX);
    const pixels = this.#probe.getImageData(0, 0, PROBE_PX, PROBE_PX).data;
    if (this.#before?.every((value, i) => value === pixels[i])) return;
    this.#before = pixels;
    // The browser shows a picture when the next one begins, so it came before this one did.
    const facts = this.#programme.place(this.#changedAt);
    this.#changedAt = now;
    const picture = this.element;
    this.presented({ ...facts, drawnAt: now, wasHidden: false, picture });
  }
}
