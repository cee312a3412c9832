/**
 * The cells of a heat map: modules down, steps or ranks across.
 * @module map_cells
 */

/**
 * @typedef {import("data").Table} Table
 * @typedef {import("map_measures").Measure} Measure
 * @typedef {{measure: Measure, across: "step" | "rank", only: number | null, depth: number, what: string | null}} Wanted
 * @typedef {{modules: string[], columns: number[], values: Float64Array[], rows: Int32Array[]}} Cells
 *   a line of values and of rows (the one that gave the value; -1 for none) for each module
 */

/** What stands for calls outside of all modules. */
export const OUTSIDE = "";

/** The numbers that a column of whole numbers has. @param {Table} table @param {string} name @returns {number[]} */
export function distinct(table, name) {
  return table.has(name) ? [...new Set(table.columns[name].numbers)].sort((one, other) => one - other) : [0];
}

/** How deep modules are nested, at most. @param {Table} table */
export function deepest(table) {
  return table.has("module") ? Math.max(1, ...table.words("module").map((path) => path.split(".").length)) : 1;
}

/**
 * @param {Table} table
 * @param {Wanted} wanted
 * @param {string | null} [module] the only one that is asked for
 * @returns {Cells}
 */
export function cellsOf(table, wanted, module = null) {
  const { across, only, what, measure } = wanted;
  const columns = distinct(table, across);
  const column = new Map(columns.map((number, at) => [number, at]));
  const lines = linesOf(table, wanted.depth);
  const values = lines.modules.map(() => new Float64Array(columns.length).fill(NaN));
  const rows = lines.modules.map(() => new Int32Array(columns.length).fill(-1));
  const take = measure.of(table);
  const other = across === "step" ? "rank" : "step";
  const others = only !== null && table.has(other) ? table.columns[other].numbers : null;
  const kinds = what === null ? null : table.codes("what");
  const kind = what === null ? -1 : table.words("what").indexOf(what);
  const places = table.has(across) ? table.columns[across].numbers : null;
  const wantedLine = module === null ? -1 : lines.modules.indexOf(module);
  for (let row = 0; row < table.length; row++) {
    if (others !== null && others[row] !== only) continue;
    if (kinds !== null && kinds[row] !== kind) continue;
    const line = lines.of(row);
    if (module !== null && line !== wantedLine) continue;
    const at = /** @type {number} */ (column.get(places === null ? 0 : places[row]));
    join(values[line], rows[line], at, take(row), row, measure.together);
  }
  return withoutEmpty({ modules: lines.modules, columns, values, rows });
}

/** @param {Float64Array} values @param {Int32Array} rows @param {number} at @param {number} value @param {number} row @param {string} together */
function join(values, rows, at, value, row, together) {
  if (Number.isNaN(value)) return;
  const known = values[at];
  if (together === "sum") {
    values[at] = Number.isNaN(known) ? value : known + value;
    if (rows[at] < 0 || (value > 0 && !(known > 0))) rows[at] = row;
  } else if (Number.isNaN(known) || (together === "largest" ? value > known : value < known)) {
    values[at] = value;
    rows[at] = row;
  }
}

/** Which line a row belongs to: its module, cut to a depth. @param {Table} table @param {number} depth */
function linesOf(table, depth) {
  /** @type {Map<string, number>} */
  const known = new Map();
  /** @param {string} path */
  const line = (path) => {
    const module = path.split(".").slice(0, depth).join(".");
    if (!known.has(module)) known.set(module, known.size);
    return /** @type {number} */ (known.get(module));
  };
  const byCode = table.has("module") ? table.words("module").map(line) : [];
  const outside = line(OUTSIDE);
  const codes = table.has("module") ? table.codes("module") : null;
  const of = (/** @type {number} */ row) => (codes === null || codes[row] < 0 ? outside : byCode[codes[row]]);
  return { modules: [...known.keys()], of };
}

/** @param {Cells} cells @returns {Cells} */
function withoutEmpty({ modules, columns, values, rows }) {
  const kept = modules.map((_, line) => line).filter((line) => values[line].some((value) => !Number.isNaN(value)));
  const pick = (/** @type {any[]} */ list) => kept.map((line) => list[line]);
  return { modules: pick(modules), columns, values: pick(values), rows: pick(rows) };
}
