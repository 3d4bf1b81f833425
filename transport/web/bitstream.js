/**
 * What a decoder has to be told, read from the first bytes of H.264 and MP4.
 */

const SLICE = 1;
const IDR = 5;
const SPS = 7;

const hex = (bytes) => [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");

/** Find the NAL units before the first picture data of an Annex B access unit, and its type. */
function* unitsOf(data) {
  for (let i = 0; i + 3 < data.length; i += 1) {
    if (data[i] !== 0 || data[i + 1] !== 0 || data[i + 2] !== 1) continue;
    const type = data[i + 3] & 31;
    yield { type, at: i + 3 };
    if (type >= SLICE && type <= IDR) return;
  }
}

/** Say of an Annex B access unit whether decoding can begin there, and under which codec name. */
export function readAccessUnit(data) {
  let codec = null;
  for (const { type, at } of unitsOf(data)) {
    if (type === SPS) codec = `avc1.${hex(data.subarray(at + 1, at + 4))}`;
    else if (type === IDR) return { isKey: true, codec };
  }
  return { isKey: false, codec };
}

/** Find `name`, four letters, and return what follows it, as a DataView; null without it. */
function boxAfter(data, name) {
  const letters = [...name].map((letter) => letter.charCodeAt(0));
  for (let i = 0; i + 4 < data.length; i += 1) {
    if (letters.every((code, k) => data[i + k] === code)) {
      return new DataView(data.buffer, data.byteOffset + i + 4);
    }
  }
  return null;
}

/** Return codec name and ticks a second of an MP4 header; null where there is no header. */
export function readHeader(data) {
  const config = boxAfter(data, "avcC");
  const media = boxAfter(data, "mdhd");
  if (!config || !media) return null;
  const bytes = [1, 2, 3].map((i) => config.getUint8(i));
  const timescale = media.getUint32(media.getUint8(0) === 1 ? 20 : 12);
  return { codec: `avc1.${hex(bytes)}`, timescale };
}

/** Return when a fragment begins, in ticks. */
export function readFragmentTime(data) {
  const time = boxAfter(data, "tfdt");
  if (!time) return null;
  return time.getUint8(0) === 1 ? Number(time.getBigUint64(4)) : time.getUint32(4);
}
