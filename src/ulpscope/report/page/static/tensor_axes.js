/**
 * Which two axes are shown, and which index of all others: shared by the heat map and the slices.
 * @module tensor_axes
 */
import { el } from "dom";
import { choice } from "tensor_charts";

/**
 * @typedef {{shape: number[], chosen(): {rows: number, columns: number | null}, at(): number[],
 *   move(at: number[]): void, name(axis: number): string, choices(place: string): HTMLElement | null,
 *   subscribe(callback: () => void): void}} Axes
 */

/**
 * @param {import("views").Context} context
 * @param {number[]} shape
 * @param {boolean} complex whether the last axis holds real and imaginary parts
 * @param {any} overview
 * @returns {Axes}
 */
export function createAxes({ store, word }, shape, complex, overview) {
  const usual = usualAxes(shape, complex, overview);
  /** @type {(() => void)[]} */
  const listeners = [];
  const isAxis = (/** @type {any} */ axis) => Number.isInteger(axis) && axis >= 0 && axis < shape.length;

  function chosen() {
    const state = store.get();
    const [rows, columns] = [state["tensor.rows"], state["tensor.columns"]];
    return isAxis(rows) && isAxis(columns) && rows !== columns ? { rows, columns } : usual;
  }

  /** @param {"rows" | "columns"} which @param {number} axis */
  function choose(which, axis) {
    const now = chosen();
    const other = which === "rows" ? "columns" : "rows";
    const next = { ...now, [which]: axis };
    // Choosing the axis that the other one shows exchanges both.
    if (next[other] === axis) next[other] = now[which];
    store.set({ "tensor.rows": next.rows, "tensor.columns": next.columns });
    listeners.forEach((listener) => listener());
  }

  function at() {
    const asked = store.get()["tensor.at"];
    const from = Array.isArray(asked) && asked.length === shape.length ? asked : worstIndex(overview, shape);
    return shape.map((size, axis) => (Number.isInteger(from[axis]) ? Math.max(0, Math.min(from[axis], size - 1)) : 0));
  }

  /** @param {number} axis */
  function name(axis) {
    if (complex && axis === shape.length - 1) return word("tensor.axis.complex");
    return word("tensor.axis", { axis: String(axis), size: shape[axis] });
  }

  /** @param {string} place */
  function choices(place) {
    if (shape.length < 2) return null;
    const options = /** @type {[string, string][]} */ (shape.map((_, axis) => [String(axis), name(axis)]));
    const { rows, columns } = chosen();
    const chooser = (/** @type {"rows" | "columns"} */ which, /** @type {number | null} */ axis) => {
      const change = (/** @type {string} */ value) => choose(which, Number(value));
      return choice(word(`tensor.${which}`), `${place}-${which}`, options, String(axis), change);
    };
    const selects = [chooser("rows", rows), chooser("columns", columns)];
    listeners.push(() => {
      const now = chosen();
      [now.rows, now.columns].forEach((axis, number) => {
        /** @type {HTMLSelectElement} */ (selects[number].querySelector("select")).value = String(axis);
      });
    });
    return el("span", { class: "tensor-axes" }, selects);
  }

  return {
    shape,
    chosen,
    at,
    move: (place) => store.set({ "tensor.at": place }),
    name,
    choices,
    subscribe: (callback) => listeners.push(callback),
  };
}

/**
 * The axis whose worst index stands out most, and the longest of the others.
 * @param {number[]} shape @param {boolean} complex @param {any} overview
 */
function usualAxes(shape, complex, overview) {
  const all = shape.map((_, axis) => axis);
  if (all.length < 2) return { rows: 0, columns: null };
  const long = all.filter((axis) => shape[axis] > 1 && !(complex && axis === shape.length - 1));
  const axes = long.length > 1 ? long : all;
  const standing = (/** @type {number} */ axis) => concentration(overview.axes[axis]);
  const first = axes.reduce((best, axis) => (standing(axis) > standing(best) * 1.001 ? axis : best));
  const others = axes.filter((axis) => axis !== first);
  const second = others.reduce((best, axis) => (shape[axis] >= shape[best] ? axis : best));
  return { rows: Math.min(first, second), columns: Math.max(first, second) };
}

/** Where the element is that differs most. @param {any} overview @param {number[]} shape */
function worstIndex({ worst }, shape) {
  return (worst.broken[0] ?? worst.absolute[0])?.index ?? shape.map(() => 0);
}

/** How much more of the error the worst index has than if all had the same. @param {any} axis */
export function concentration({ worst, size, block }) {
  return (worst[0]?.share ?? 0) * Math.ceil(size / block);
}
