/**
 * The cells of a heat map: modules down, steps or ranks across.
 * @module map_cells
 */
import { separator } from "modules";

/**
 * @typedef {import("data").Table} Table
 * @typedef {import("map_measures").Measure} Measure
 * @typedef {{measure: Measure, across: "step" | "rank", only: number | null, depth: number,
 *   what: string | null}} Wanted
 * @typedef {{modules: string[], columns: number[], values: Float64Array[], rows: Int32Array[], left: number}} Cells
 *   for each module a line of values and of rows (the one that gave the value; -1 for none), and how many modules are
 *   left out
 */

/** What stands for calls outside of all modules. */
export const OUTSIDE = "";
/** So many lines can be drawn; of more, the worst. */
const MOST_LINES = 1000;

/** @type {WeakMap<Table, Map<string, number[]>>} */
const numbersOf = new WeakMap();

/** The numbers that a column of whole numbers has. @param {Table} table @param {string} name @returns {number[]} */
export function distinct(table, name) {
  const known = numbersOf.get(table) ?? new Map();
  numbersOf.set(table, known);
  if (!known.has(name)) {
    const found = table.has(name) ? new Set(table.columns[name].numbers) : [0];
    known.set(
      name,
      [...found].sort((one, other) => one - other),
    );
  }
  return known.get(name);
}

/** How deep modules are nested, at most. @param {Table} table */
export function deepest(table) {
  const parting = separator(table);
  return table.words("module").reduce((most, path) => Math.max(most, path.split(parting).length), 1);
}

/** What is not across. @param {Wanted} wanted @returns {"step" | "rank"} */
export function otherThan({ across }) {
  return across === "step" ? "rank" : "step";
}

/** @param {Table} table @param {Wanted} wanted @returns {Cells} */
export function cellsOf(table, wanted) {
  const { across, only, measure } = wanted;
  const columns = distinct(table, across);
  const lines = linesOf(table, wanted.depth);
  const values = lines.modules.map(() => new Float64Array(columns.length).fill(NaN));
  const rows = lines.modules.map(() => new Int32Array(columns.length).fill(-1));
  const others = table.columns[otherThan(wanted)]?.numbers;
  visit(table, wanted, (row, at, value) => {
    if (only !== null && others[row] !== only) return;
    const line = lines.of(row);
    if (join(values[line], at, value, measure.together)) rows[line][at] = row;
  });
  return mostOf({ modules: lines.modules, columns, values, rows, left: 0 }, measure);
}

/**
 * One module alone: a line for each rank (or step, where ranks are across).
 * @param {Table} table @param {Wanted} wanted @param {string} module @returns {Map<number, Float64Array>}
 */
export function trendsOf(table, wanted, module) {
  const { across, only, measure } = wanted;
  const columns = distinct(table, across);
  const lines = linesOf(table, wanted.depth);
  const line = lines.modules.indexOf(module);
  const others = table.columns[otherThan(wanted)]?.numbers;
  /** @type {Map<number, Float64Array>} */
  const found = new Map();
  visit(table, wanted, (row, at, value) => {
    const other = others?.[row] ?? 0;
    if (lines.of(row) !== line || (only !== null && other !== only)) return;
    const values = found.get(other) ?? new Float64Array(columns.length).fill(NaN);
    join(values, at, value, measure.together);
    found.set(other, values);
  });
  return new Map([...found].sort(([one], [other]) => one - other));
}

/**
 * Every row that has a value, with the column it belongs to.
 * @param {Table} table @param {Wanted} wanted @param {(row: number, column: number, value: number) => void} each
 */
function visit(table, { across, what, measure }, each) {
  const column = new Map(distinct(table, across).map((number, at) => [number, at]));
  const places = table.has(across) ? table.columns[across].numbers : null;
  const kinds = what === null ? null : table.codes("what");
  const kind = what === null ? -1 : table.words("what").indexOf(what);
  const take = measure.of(table);
  for (let row = 0; row < table.length; row++) {
    if (kinds !== null && kinds[row] !== kind) continue;
    const value = take(row);
    if (!Number.isNaN(value)) each(row, /** @type {number} */ (column.get(places === null ? 0 : places[row])), value);
  }
}

/**
 * Take a value into its cell.
 * @param {Float64Array} values @param {number} at @param {number} value @param {string} together
 * @returns {boolean} whether the cell's row is to be its row
 */
function join(values, at, value, together) {
  const known = values[at];
  const isFirst = Number.isNaN(known);
  if (together === "sum") {
    values[at] = isFirst ? value : known + value;
    return isFirst || (value > 0 && !(known > 0));
  }
  const isWorse = isFirst || (together === "largest" ? value > known : value < known);
  if (isWorse) values[at] = value;
  return isWorse;
}

/** Which line a row belongs to: its module, cut to a depth. @param {Table} table @param {number} depth */
function linesOf(table, depth) {
  const parting = separator(table);
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @param {string} path */
  const line = (path) => {
    const module = path.split(parting).slice(0, depth).join(parting);
    if (!known.has(module)) known.set(module, known.size);
    return /** @type {number} */ (known.get(module));
  };
  const byCode = table.words("module").map(line);
  const outside = line(OUTSIDE);
  const codes = table.codes("module");
  return {
    modules: [...known.keys()],
    of: (/** @type {number} */ row) => (codes[row] < 0 ? outside : byCode[codes[row]]),
  };
}

/**
 * The lines that have values; of too many, the worst, in their order.
 * @param {Cells} cells @param {Measure} measure @returns {Cells}
 */
function mostOf({ modules, columns, values, rows }, measure) {
  const full = modules.map((_, line) => line).filter((line) => values[line].some((value) => !Number.isNaN(value)));
  const weights = values.map((line) => weightOf(line, measure));
  const ranked = full.length > MOST_LINES ? [...full].sort((one, other) => weights[other] - weights[one]) : full;
  const kept = ranked.slice(0, MOST_LINES).sort((one, other) => one - other);
  const pick = (/** @type {any[]} */ list) => kept.map((line) => list[line]);
  return { modules: pick(modules), columns, values: pick(values), rows: pick(rows), left: full.length - kept.length };
}

/** How bad the worst of a line is. @param {Float64Array} values @param {Measure} measure */
export function weightOf(values, { together }) {
  const sign = together === "smallest" ? -1 : 1;
  return values.reduce((most, value) => (value * sign > most ? value * sign : most), -Infinity);
}
