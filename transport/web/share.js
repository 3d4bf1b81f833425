/** Put `text` on the clipboard; return whether that was possible. */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelected(text); // there is no clipboard on plain http, or it is forbidden
  }
}

function copySelected(text) {
  const before = document.activeElement;
  const box = document.createElement("textarea");
  box.value = text;
  box.className = "unseen";
  document.body.append(box);
  box.select();
  const copied = document.execCommand("copy");
  box.remove();
  before?.focus();
  return copied;
}
