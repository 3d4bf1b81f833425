/**
 * A word on how the pictures come, which is a menu of the other ways.
 */

import { WAYS } from "./sources.js";

export class WayMenu {
  /** `select` shows the way that `playback` uses, and chooses another. */
  constructor(select, playback) {
    for (const { kind, label, usable } of WAYS) {
      const option = new Option(label, kind);
      option.disabled = !usable;
      select.append(option);
    }
    select.selectedIndex = WAYS.findIndex(({ usable }) => usable);
    select.addEventListener("change", () => playback.choose(select.value));
    playback.addEventListener("using", ({ detail: { kind } }) => {
      select.value = kind;
    });
  }
}
