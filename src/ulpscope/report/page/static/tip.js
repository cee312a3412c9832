/**
 * A small box beside the pointer. Its text is text: charts' own boxes understand markup.
 * @module tip
 */
import { el, fill } from "dom";

export function createTip() {
  const element = el("div", { class: "tip hidden", role: "status" });
  return {
    element,
    /** @param {{clientX: number, clientY: number}} at @param {any} children */
    show(at, children) {
      fill(element, children);
      element.classList.remove("hidden");
      const { width, height } = element.getBoundingClientRect();
      element.style.left = `${Math.max(4, Math.min(at.clientX + 14, innerWidth - width - 8))}px`;
      element.style.top = `${Math.max(4, Math.min(at.clientY + 14, innerHeight - height - 8))}px`;
    },
    hide() {
      element.classList.add("hidden");
    },
  };
}
