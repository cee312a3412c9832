/**
 * A slice of both tensors: two axes shown, an index of each other chosen; a window of it that moves over long axes.
 * @module tensor_slice
 */
import { el, fill } from "dom";
import { errorText, valueText } from "numbers";
import { onClick } from "plotting";
import { chartPlace, choice, colorBar, draw, finite, signedScale } from "tensor_charts";
import { color } from "theme";

const SHOWN = ["difference", "reference", "target"];

/**
 * @param {import("views").Context} context
 * @param {import("tensor_axes").Axes} axes
 * @param {number} size rows and columns of a window
 * @param {(query: string) => Promise<any>} slice
 * @returns {{element: HTMLElement, look(at: number[]): void}}
 */
export function sliceCard({ store, word }, axes, size, slice) {
  const { shape } = axes;
  const place = chartPlace("slice", word("tensor.slice.label"), word("tensor.reading"), shape.length > 1 ? 420 : 140);
  const readout = el("output", { class: "mono tensor-readout" });
  const moves = el("span", { class: "tensor-moves" });
  const indices = el("span", { class: "tensor-axes" });
  /** @type {{query: string, reference: any[][], target: any[][], down: number, across: number} | null} */
  let window = null;

  const shown = () => (SHOWN.includes(store.get()["tensor.show"]) ? store.get()["tensor.show"] : "difference");

  /** The axes down and across; one that is not there is null. */
  function spread() {
    const { rows, columns } = axes.chosen();
    return columns === null ? { down: null, across: rows } : { down: rows, across: columns };
  }

  /** Where the window begins that holds the chosen element. @param {number | null} axis */
  function begin(axis) {
    return axis === null ? 0 : Math.floor(axes.at()[axis] / size) * size;
  }

  async function show() {
    const { down, across } = spread();
    const from = axes.at().map((index, axis) => (axis === down || axis === across ? begin(axis) : index));
    const query = `${down === null ? `rows=${across}` : `rows=${down}&columns=${across}`}&at=${from.join(",")}`;
    drawIndices();
    drawMoves();
    if (window?.query !== query) {
      const found = await slice(query);
      if (!found) return;
      window = { ...found, query, down: begin(down), across: begin(across) };
    }
    await paint();
  }

  async function paint() {
    if (!window) return;
    const { down, across } = spread();
    const { cells, bound } = painted(window, shown());
    const cursor = at();
    const [left, top] = [window.across - 0.5, window.down - 0.5];
    const named = (/** @type {number} */ axis, /** @type {number[]} */ range) => ({
      title: { text: axes.name(axis) },
      range,
      autorange: false,
    });
    await draw(place, [map(word, cells, window, bound, shown())], {
      xaxis: named(across, [left, left + cells[0].length]),
      yaxis: down === null ? { visible: false } : named(down, [top + cells.length, top]),
      shapes: [outline(cursor.x, cursor.y)],
    });
    onClick(place, ({ points: [{ x, y }] }) => go({ ...(down === null ? {} : { [down]: y }), [across]: x }));
    fill(readout, told());
  }

  function at() {
    const { down, across } = spread();
    const index = axes.at();
    return { x: index[across], y: down === null ? 0 : index[down] };
  }

  /** The chosen element in words. */
  function told() {
    if (!window) return "";
    const { x, y } = at();
    const reference = window.reference[y - window.down]?.[x - window.across];
    const target = window.target[y - window.down]?.[x - window.across];
    const apart = difference(reference, target);
    const index = `[${axes.at().join(", ")}]`;
    return word("tensor.slice.element", {
      index, reference: shownNumber(reference), target: shownNumber(target),
      difference: apart === null ? (String(reference) === String(target) ? "0" : "–") : errorText(apart),
    });
  }

  /** @param {Record<number, number>} places new indices by axis */
  function go(places) {
    const inside = (/** @type {number} */ axis) => Math.max(0, Math.min(Math.round(places[axis]), shape[axis] - 1));
    axes.move(axes.at().map((index, axis) => (axis in places ? inside(axis) : index)));
    show();
  }

  function drawIndices() {
    const { down, across } = spread();
    const others = shape.map((_, axis) => axis).filter((axis) => axis !== down && axis !== across);
    const index = axes.at();
    const known = [...indices.querySelectorAll("input")];
    if (String(known.map((input) => input.dataset.axis)) === String(others)) {
      known.forEach((input, number) => { input.value = String(index[others[number]]); });
      return;
    }
    fill(indices, others.map((axis) => el(
      "label",
      { class: "tensor-choice" },
      axes.name(axis),
      el("input", {
        type: "number", min: 0, max: shape[axis] - 1, value: index[axis], "data-axis": axis,
        on: { change: (/** @type {any} */ event) => go({ [axis]: Number(event.target.value) || 0 }) },
      }),
    )));
  }

  function drawMoves() {
    const { down, across } = spread();
    const long = [across, down].filter((axis) => axis !== null && shape[axis] > size);
    const focused = document.activeElement?.getAttribute("data-move");
    fill(moves, long.map((axis) => [-1, 1].map((way) => moveButton(/** @type {number} */ (axis), way))));
    const again = focused ? moves.querySelector(`[data-move="${CSS.escape(focused)}"]`) : null;
    /** @type {HTMLElement | null} */ (again)?.focus();
  }

  /** @param {number} axis @param {number} way */
  function moveButton(axis, way) {
    const to = begin(axis) + way * size;
    const label = word(way < 0 ? "tensor.slice.back" : "tensor.slice.on", { axis: axes.name(axis) });
    const off = to < 0 || to >= shape[axis];
    const click = () => off || go({ [axis]: to });
    return el("button", { "data-move": `${axis},${way}`, "aria-disabled": off ? "true" : null, on: { click } }, label);
  }

  /** @param {any} event */
  function press(event) {
    const { down, across } = spread();
    const far = event.shiftKey ? 16 : 1;
    const { x, y } = at();
    /** @type {Record<string, Record<number, number>>} */
    const steps = {
      ArrowLeft: { [across]: x - far },
      ArrowRight: { [across]: x + far },
      Home: { [across]: 0 },
      End: { [across]: shape[across] - 1 },
      ...(down !== null && {
        ArrowUp: { [down]: y - far },
        ArrowDown: { [down]: y + far },
        PageUp: { [down]: y - size },
        PageDown: { [down]: y + size },
      }),
    };
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    go(step);
  }

  const options = /** @type {[string, string][]} */ (SHOWN.map((name) => [name, word(`tensor.show.${name}`)]));
  const what = choice(word("tensor.show"), "show", options, shown(), (value) => {
    store.set({ "tensor.show": value });
    paint();
  });
  const label = word("tensor.slice.keys");
  const props = { class: "tensor-field", tabindex: "0", role: "application", "aria-label": label };
  const field = el("div", { ...props, on: { keydown: press } }, place);
  const element = el(
    "section",
    { class: "card tensor-slice" },
    el("header", {}, el("h2", {}, word("tensor.slice")), axes.choices("slice"), indices, what, moves),
    field,
    el("p", { "aria-live": "polite" }, readout),
    el("p", { class: "muted tensor-note" }, word("tensor.slice.keys")),
  );
  axes.subscribe(show);
  show();
  return {
    element,
    look(index) {
      axes.move(index);
      show();
      field.scrollIntoView({ block: "nearest" });
      field.focus({ preventScroll: true });
    },
  };
}

/** @param {any} reference @param {any} target @returns {number | null} */
function difference(reference, target) {
  return typeof reference === "number" && typeof target === "number" ? target - reference : null;
}

/** @param {any} number */
function shownNumber(number) {
  return typeof number === "number" ? valueText(number) : String(number ?? "–");
}

/** What is painted, and the size that has the fullest colour. @param {any} window @param {string} shown */
function painted(window, shown) {
  const apart = (/** @type {any[]} */ row, /** @type {number} */ y) =>
    row.map((number, x) => difference(number, window.target[y][x]));
  const cells =
    shown === "difference"
      ? window.reference.map(apart)
      : window[shown].map((/** @type {any[]} */ row) => row.map(finite));
  let bound = 0;
  for (const row of cells) for (const cell of row) if (cell !== null) bound = Math.max(bound, Math.abs(cell));
  return { cells, bound };
}

/**
 * @param {import("views").Context["word"]} word @param {any[][]} cells @param {any} window @param {number} bound
 * @param {string} shown
 */
function map(word, cells, window, bound, shown) {
  return {
    type: "heatmap",
    z: cells,
    x0: window.across,
    dx: 1,
    y0: window.down,
    dy: 1,
    colorscale: signedScale(),
    zmin: -(bound || 1),
    zmax: bound || 1,
    colorbar: colorBar(""),
    hovertemplate: `[%{y}, %{x}]: %{z:.6g}<extra>${word(`tensor.show.${shown}`)}</extra>`,
  };
}

/** @param {number} x @param {number} y */
function outline(x, y) {
  return { type: "rect", x0: x - 0.5, x1: x + 0.5, y0: y - 0.5, y1: y + 0.5, line: { color: color("text"), width: 2 } };
}
