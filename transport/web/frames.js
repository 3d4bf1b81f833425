/**
 * The frames that a video element presents.
 */

const UNTOLD = 8; // looks that found new frames while no callback came

/**
 * Call `presented(now, metadata)` for each frame of `video` that became visible, until `signal` is
 * aborted. Metadata is that of requestVideoFrameCallback; browsers without it, or with one that is
 * never called (WebKitGTK where it composites without a GPU), are polled, and tell `mediaTime` and
 * `presentedFrames` only.
 */
export function watchFrames(video, presented, signal) {
  if (!video.requestVideoFrameCallback) {
    poll(video, presented, signal);
    return;
  }
  let means = null; // how frames are told, once that is known
  const next = (now, metadata) => {
    if (signal.aborted || means === "poll") return;
    means = "callback";
    presented(now, metadata);
    video.requestVideoFrameCallback(next);
  };
  video.requestVideoFrameCallback(next);
  let untold = 0;
  const look = () => {
    untold += 1;
    if (untold < UNTOLD || video.paused) return;
    means = "poll";
    poll(video, presented, signal);
  };
  poll(video, look, { get aborted() { return signal.aborted || means !== null; } });
}

function poll(video, presented, signal) {
  let before = 0;
  const look = (now) => {
    if (signal.aborted) return;
    const presentedFrames = video.getVideoPlaybackQuality().totalVideoFrames;
    const mediaTime = video.currentTime;
    if (presentedFrames !== before) presented(now, { mediaTime, presentedFrames });
    before = presentedFrames;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}

/** Return a video element that may play by itself: muted and inline, as browsers want it. */
export function makeVideo() {
  const video = document.createElement("video");
  for (const name of ["muted", "autoplay", "playsinline", "disablepictureinpicture"]) {
    video.setAttribute(name, "");
  }
  video.muted = video.playsInline = true;
  return video;
}

/** Play; `refused()` is called when the browser wants a click first. */
export async function playVideo(video, refused) {
  try {
    await video.play();
  } catch (error) {
    // Anything else (a source that was replaced meanwhile) shows in the stream that stops.
    if (error.name === "NotAllowedError") refused();
  }
}
