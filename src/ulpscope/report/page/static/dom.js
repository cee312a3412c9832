/**
 * Elements of the page. Names and values reach it only through here: as text or as attributes, never as markup.
 * @module dom
 */

/** @typedef {Node | string | number | null | undefined | false | Child[]} Child */

/**
 * Make an element. `class`, `on` (listeners by event) and `style` (properties) are special, all else are attributes;
 * an attribute of null, undefined or false is left out.
 * @param {string} tag
 * @param {Record<string, any>} [props]
 * @param {...Child} children
 * @returns {HTMLElement}
 */
export function el(tag, props = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "style") {
      for (const [property, setting] of Object.entries(value)) element.style.setProperty(property, setting);
    } else if (name === "class") {
      element.className = value;
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  add(element, ...children);
  return element;
}

/**
 * Append children; what is null, undefined or false is left out.
 * @param {Element} parent
 * @param {...Child} children
 */
export function add(parent, ...children) {
  for (const child of /** @type {any[]} */ (children).flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : visible(String(child)));
  }
}

/**
 * Remove all children.
 * @param {Element} node
 */
export function clear(node) {
  node.replaceChildren();
}

/**
 * Remove all children and put these in their place.
 * @param {Element} node
 * @param {...Child} children
 */
export function fill(node, ...children) {
  clear(node);
  add(node, ...children);
}

const STEERING = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;

/**
 * A text whose line breaks, marks of direction and other unseen characters are written out.
 * @param {string} text
 * @returns {string}
 */
export function visible(text) {
  return text.replace(STEERING, (character) => {
    const code = /** @type {number} */ (character.codePointAt(0));
    if (character === "\n") return "\\n";
    return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}
