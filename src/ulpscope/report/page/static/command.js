/**
 * A command for the shell, with a button that copies it.
 * @module command
 */
import { el, fill } from "dom";

/** @param {string} command @param {import("views").Context["word"]} word @returns {HTMLElement} */
export function commandLine(command, word) {
  const button = el("button", { type: "button", on: { click: copy } }, word("copy"));
  async function copy() {
    const done = await copied(command);
    fill(button, word(done ? "copy.done" : "copy.failed"));
    setTimeout(() => fill(button, word("copy")), 1500);
  }
  return el("div", { class: "command" }, el("code", { class: "name" }, command), button);
}

/** @param {string} text @returns {Promise<boolean>} */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copiedBySelection(text);
  }
}

/** A page opened as a file may lack the clipboard's own interface. @param {string} text */
function copiedBySelection(text) {
  const area = /** @type {HTMLTextAreaElement} */ (el("textarea", { class: "visually-hidden" }));
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
