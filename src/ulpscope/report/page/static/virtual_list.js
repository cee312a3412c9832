/**
 * A long list of rows of equal height, of which only those in sight are there.
 * @module virtual_list
 */
import { fill, el } from "dom";

export const ROW_HEIGHT = 26;
const SPARE_ROWS = 8;
/** Browsers draw no element that is taller than some 33 million pixels. */
const TALLEST = 20e6;

/**
 * @param {HTMLElement} scroller what scrolls
 * @param {HTMLElement} body what holds the rows; it gets their height
 * @param {() => number} covered how much of the scroller a head covers
 * @param {(at: number) => HTMLElement} drawRow
 */
export function createVirtualList(scroller, body, covered, drawRow) {
  let length = 0;

  const real = () => length * ROW_HEIGHT;
  const sight = () => Math.max(ROW_HEIGHT, scroller.clientHeight - covered());
  /** Rows for one pixel of scrolling: more than pixels show where the list is taller than can be drawn. */
  const scale = () => (real() > TALLEST ? (real() - sight()) / (TALLEST - sight()) : 1);
  const first = () => Math.floor((scroller.scrollTop * scale()) / ROW_HEIGHT);

  function draw() {
    const begin = Math.max(0, Math.min(first(), length - 1) - SPARE_ROWS);
    const end = Math.min(length, begin + Math.ceil(sight() / ROW_HEIGHT) + 2 * SPARE_ROWS);
    const shift = scroller.scrollTop + begin * ROW_HEIGHT - scroller.scrollTop * scale();
    const rows = [];
    for (let at = begin; at < end; at++) rows.push(drawRow(at));
    const style = { transform: `translateY(${Math.max(0, shift)}px)` };
    fill(body, el("div", { class: "window", role: "presentation", style }, rows));
  }

  scroller.addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  new ResizeObserver(() => draw()).observe(scroller);
  return {
    draw,
    /** @param {number} rows */
    resize(rows) {
      length = rows;
      body.style.height = `${Math.min(real(), TALLEST)}px`;
    },
    /** Scroll as little as shows a row. @param {number} at */
    reveal(at) {
      const rows = Math.floor(sight() / ROW_HEIGHT);
      if (at >= first() && at < first() + rows) return;
      const wanted = at < first() ? at : at - rows + 1;
      scroller.scrollTop = (wanted * ROW_HEIGHT) / scale();
    },
    /** Rows that a page key moves. */
    page: () => Math.max(1, Math.floor(sight() / ROW_HEIGHT) - 1),
  };
}

/**
 * Where a key moves to in a list; null if the key is none of these.
 * @param {string} key @param {number} at @param {number} length @param {number} page
 */
export function movedBy(key, at, length, page) {
  const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
  const move = moves[/** @type {"Home"} */ (key)];
  return move === undefined || length === 0 ? null : Math.max(0, Math.min(length - 1, at + move));
}
