/**
 * Whatever can be drawn: a canvas, a video, an image, a decoded frame.
 */

/** Return width and height of a picture in its own pixels. */
export function sizeOf(picture) {
  const { displayWidth, videoWidth, naturalWidth } = picture;
  const width = displayWidth ?? videoWidth ?? naturalWidth ?? picture.width;
  const { displayHeight, videoHeight, naturalHeight } = picture;
  return { width, height: displayHeight ?? videoHeight ?? naturalHeight ?? picture.height };
}

/** Return a canvas with what a picture shows now. */
export function still(picture) {
  const canvas = Object.assign(document.createElement("canvas"), sizeOf(picture));
  if (canvas.width) canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas;
}
