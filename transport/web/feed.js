/**
 * A session's view socket: pictures in one format, each with what is known of it.
 */

import { Link } from "./link.js";
import { sessionPath, socketUrl } from "./urls.js";

export class Feed {
  numDropped = 0; // frames that the server skipped for us
  numBytes = 0;
  #link;
  #meta = null; // of the chunk, and with `h264` and `m4s` of the frame, that comes next

  /**
   * `opened()`, `picture(ArrayBuffer, metadata)` and `failed(reason)` are called as things happen,
   * until `signal` is aborted.
   */
  constructor(session, settings, { opened, picture, failed }, signal) {
    let failure = "The video connection was closed";
    this.#link = new Link(socketUrl(sessionPath(session.id, "view")), {
      opened: () => {
        this.send({ type: "session.view", viewer_token: session.token, ...settings });
      },
      message: (message) => {
        if (message.type === "video.start") opened();
        else if (message.type === "video.chunk_metadata") this.#meta = message;
        else if (message.type === "session.stats") this.numDropped = message.dropped;
        else if (message.type === "error") {
          failure = message.message;
          this.#link.close();
        }
      },
      picture: (buffer) => {
        this.numBytes += buffer.byteLength;
        picture(buffer, this.#meta);
      },
    });
    this.#link.closed.then(() => signal.aborted || failed(failure));
    signal.addEventListener("abort", () => this.#link.close());
  }

  send(message) {
    return this.#link.send(message);
  }
}

/** Return frame number, chunk and media time of the one frame that this metadata announces. */
export function factsOf(meta) {
  return {
    index: meta.first_frame_index,
    chunk: meta.generation_chunk_index,
    ptsUs: Math.round(meta.pts_ms * 1000),
  };
}
