/**
 * Figures: what is measured here (frames seen a second, the way of a prompt to the picture, bits a
 * second, frames that were never seen) and what the server reports about itself.
 */

const RATE_WINDOW_MS = 2000;
const REFRESH_MS = 500;
const HISTORY = 40; // points of the curve, one each refresh
const MEASURE_MS = 1000;

const ms = (value) => `${Math.round(value).toLocaleString("en")} ms`;
const rate = (kbits) =>
  kbits < 1000 ? `${Math.round(kbits)} kbit/s` : `${(kbits / 1000).toFixed(1)} Mbit/s`;
const FIELDS = {
  chunk_ms_p50: (value) => Math.round(value).toLocaleString("en"),
  chunk_ms_p95: ms,
  lead_ms: (value) => `${(value / 1000).toFixed(1)} s`,
  underruns: String,
};

export class Stats {
  #panel;
  #drawnAt = []; // of the last RATE_WINDOW_MS
  #history = [];
  #nominal = 16;
  #timers;
  #source;
  #before = { source: null }; // {source, numBytes, at} of the last measurement

  /**
   * `panel` holds one element with `data-stat` for each figure and the curve; `source()` gives the
   * media source in use, or null.
   */
  constructor(panel, source) {
    this.#panel = panel;
    this.#source = source;
    this.#timers = [
      setInterval(() => this.#refresh(performance.now()), REFRESH_MS),
      setInterval(() => this.#measure(), MEASURE_MS),
    ];
  }

  stop() {
    this.#timers.forEach(clearInterval);
  }

  /** Set the frame rate the stream should have; the curve is drawn against it. */
  setNominal(fps) {
    this.#nominal = fps;
  }

  drew(at) {
    this.#drawnAt.push(at);
  }

  /** A prompt was seen, so long after it was sent; null when that was not measured. */
  saw(latencyMs) {
    if (latencyMs !== null) this.#write("prompt_to_picture_ms", ms(latencyMs));
  }

  /** Show the server's `session.stats`. */
  heard(message) {
    for (const [field, format] of Object.entries(FIELDS)) {
      const value = message[field];
      this.#write(field, Number.isFinite(value) ? format(value) : "–");
    }
  }

  /** Frames drawn per second over the last two seconds. */
  fps(now = performance.now()) {
    while (this.#drawnAt.length && now - this.#drawnAt[0] > RATE_WINDOW_MS) this.#drawnAt.shift();
    if (this.#drawnAt.length < 2) return 0;
    // Intervals, not frames: exact from the first second on.
    const span = Math.max(now - this.#drawnAt[0] - 1000 / this.#nominal, 1);
    const whole = this.#drawnAt.at(-1) - this.#drawnAt[0];
    return ((this.#drawnAt.length - 1) * 1000) / Math.max(whole, span);
  }

  async #measure() {
    const source = this.#source();
    await source?.measure();
    const { numBytes, numDropped } = source ?? {};
    const now = { source, numBytes, at: performance.now() };
    const before = this.#before;
    this.#before = now;
    this.#write("dropped", source ? String(numDropped) : "–");
    if (source === null || before.source !== source || !Number.isFinite(numBytes)) {
      this.#write("bitrate", "–");
      return;
    }
    this.#write("bitrate", rate((8 * (numBytes - before.numBytes)) / (now.at - before.at)));
  }

  #refresh(now) {
    const fps = this.fps(now);
    this.#write("fps", fps ? fps.toFixed(1) : "–");
    if (fps || this.#history.length) this.#history.push(fps);
    if (this.#history.length > HISTORY) this.#history.shift();
    this.#panel.querySelector(".curve path").setAttribute("d", this.#curve());
  }

  #curve() {
    const top = this.#nominal * 1.15;
    const x = (i) => (((HISTORY - this.#history.length + i) / (HISTORY - 1)) * 100).toFixed(2);
    const y = (fps) => (30 - (Math.min(fps, top) / top) * 28).toFixed(2);
    return this.#history.map((fps, i) => `${i ? "L" : "M"}${x(i)} ${y(fps)}`).join("");
  }

  #write(name, text) {
    const element = this.#panel.querySelector(`[data-stat=${name}]`);
    if (element.textContent !== text) element.textContent = text;
  }
}
