/** Return media time in microseconds as m:ss, or h:mm:ss after an hour. */
export function clock(ptsUs) {
  const seconds = Math.floor(ptsUs / 1e6);
  const parts = [Math.floor(seconds / 60) % 60, seconds % 60];
  const hours = Math.floor(seconds / 3600);
  if (hours) parts.unshift(hours);
  return parts.map((part, i) => (i ? String(part).padStart(2, "0") : part)).join(":");
}
