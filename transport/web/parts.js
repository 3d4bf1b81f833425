/**
 * The elements of a pane, made from the page's template.
 */

const template = document.getElementById("pane");

/**
 * Return the elements of pane `number`. `data-part` names become ids, and labels and descriptions
 * find what they name: `video` of the first pane is `video-1`.
 */
export function build(number) {
  const root = template.content.firstElementChild.cloneNode(true);
  root.id = `pane-${number}`;
  for (const element of root.querySelectorAll("*")) {
    const { part, describedby, labelledby, for: target } = element.dataset;
    if (part) element.id = `${part}-${number}`;
    if (describedby) element.setAttribute("aria-describedby", `${describedby}-${number}`);
    if (labelledby) element.setAttribute("aria-labelledby", `${labelledby}-${number}`);
    if (target) element.htmlFor = `${target}-${number}`;
  }
  return root;
}
