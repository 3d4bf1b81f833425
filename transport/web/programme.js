/**
 * Which frame a picture is, where pictures carry no numbers: told from when the chunks were
 * announced on the control socket.
 *
 * A chunk's first picture and its announcement are sent in the same moment, so the picture
 * received next to the announcement, by less than half a frame before it or by any time after it,
 * counts as the first, and from there it is counted, or timed, on. A picture that waited in a queue
 * on its way is judged by when it would have come without: its RTP time, plus the least that any
 * lately took. Where pictures take longer than messages even so, they are dated too early by that.
 */

const LEAST_OVER_MS = 5000; // then clocks may have drifted, and a route changed
const MAX_CHUNKS = 8;
const RTP_TICKS_MS = 90;
const RTP_RANGE = 2 ** 32;

export class Programme {
  #fps;
  #chunks = []; // [{at, chunk, first, count, ptsUs}], newest last
  #index = -1;
  #counted = null; // how many frames the element had presented at the last one
  #least = { before: Infinity, now: Infinity, since: -Infinity };
  #rtp = null; // {last, ms}

  constructor(fps) {
    this.#fps = fps;
  }

  /** Take note of a message of the control socket that came at `at`. */
  heard(message, at) {
    if (message.type !== "video.chunk_metadata") return;
    const before = this.#chunks.at(-1);
    this.#chunks.push({
      at,
      chunk: message.generation_chunk_index,
      first: message.first_frame_index,
      count: message.num_frames,
      ptsUs: message.pts_ms * 1000,
    });
    if (this.#chunks.length > MAX_CHUNKS) this.#chunks.shift();
    this.#follow(before, this.#chunks.at(-1));
  }

  /** Return index, chunk and media time of a frame presented at `now`. */
  place(now, { receiveTime, rtpTimestamp, presentedFrames } = {}) {
    const timed = receiveTime !== undefined;
    const at = timed ? this.#undelayed(receiveTime, rtpTimestamp) + 500 / this.#fps : now;
    const on = this.#chunks.findLast((chunk) => chunk.at <= at);
    if (!on) return { index: -1, chunk: -1, ptsUs: 0 };
    const next = presentedFrames === undefined ? this.#timed(on, at) : this.#count(presentedFrames);
    const last = on.first + on.count - 1;
    this.#index = Math.min(Math.max(next, on.first), Math.max(last, this.#index));
    const ptsUs = on.ptsUs + ((this.#index - on.first) / this.#fps) * 1e6;
    return { index: this.#index, chunk: on.chunk, ptsUs: Math.round(ptsUs) };
  }

  /** Take the frame rate from two chunks in a row: it may be changed while the session runs. */
  #follow(before, newest) {
    if (newest.chunk !== before?.chunk + 1 || newest.ptsUs <= before.ptsUs) return;
    this.#fps = (1e6 * before.count) / (newest.ptsUs - before.ptsUs);
  }

  /** Return the next index, over frames that the element presented and nobody was told of. */
  #count(presentedFrames) {
    const step = presentedFrames - (this.#counted ?? presentedFrames - 1);
    this.#counted = presentedFrames;
    return this.#index + step;
  }

  /** Return the index of a frame that came at `at`, where frames are missed and not counted. */
  #timed(on, at) {
    return Math.max(this.#index, on.first + Math.floor(((at - on.at) * this.#fps) / 1000));
  }

  #undelayed(receivedAt, rtpTimestamp) {
    if (rtpTimestamp === undefined) return receivedAt;
    const sentMs = this.#sentMs(rtpTimestamp);
    const least = this.#least;
    if (receivedAt - least.since > LEAST_OVER_MS) {
      Object.assign(least, { before: least.now, now: Infinity, since: receivedAt });
    }
    least.now = Math.min(least.now, receivedAt - sentMs);
    return sentMs + Math.min(least.before, least.now);
  }

  /** Return the sender's time of a frame, counted on when the 32 bits of the wire are through. */
  #sentMs(timestamp) {
    this.#rtp ??= { last: timestamp, ms: 0 };
    const ticks = ((timestamp - this.#rtp.last + 1.5 * RTP_RANGE) % RTP_RANGE) - RTP_RANGE / 2;
    this.#rtp = { last: timestamp, ms: this.#rtp.ms + ticks / RTP_TICKS_MS };
    return this.#rtp.ms;
  }
}
