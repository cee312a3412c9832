/**
 * Which rows of the pairs are shown, and in which order.
 * @module filtering
 */

import { errorsOf } from "calls";
import { separator } from "modules";

/**
 * @typedef {{text?: string, op?: string, module?: string, judgement?: string, rank?: number, step?: number,
 *   phase?: string, kind?: string, role?: string}} Filter
 * @typedef {{column: string, descending: boolean}} Sort
 */

/** Where a free text is looked for. */
const SEARCHED = ["call_target", "call_reference", "op", "module", "place"];
const WORDS = ["op", "phase", "kind", "role"];
const NUMBERS = ["rank", "step"];
export const NOT_COMPARED = "not_compared";
const SET_UP = "setup";

/** @type {WeakMap<any, {key: string, rows: Int32Array}>} */
const filtered = new WeakMap();
/** @type {WeakMap<any, Map<string, Int32Array>>} */
const orders = new WeakMap();

/**
 * Numbers of the rows that a filter lets through, in the order that was asked for.
 * @param {import("data").Table} pairs
 * @param {Filter} filter
 * @param {Sort | null} [sort]
 * @returns {Int32Array}
 */
export function rowsShown(pairs, filter, sort = null) {
  const known = filtered.get(pairs);
  const key = JSON.stringify([filter, sort]);
  if (known?.key === key) return known.rows;
  const rows = passing(pairs, tests(pairs, filter), sort === null ? setUpLast(pairs) : order(pairs, sort));
  filtered.set(pairs, { key, rows });
  return rows;
}

/** Whether a filter lets everything through. @param {Filter} filter */
export function isOpen(filter) {
  return Object.values(filter).every((value) => value === undefined || value === null || value === "");
}

/**
 * @param {import("data").Table} pairs @param {((row: number) => boolean)[]} checks
 * @param {Int32Array | null} sequence
 */
function passing(pairs, checks, sequence) {
  const found = new Int32Array(pairs.length);
  let number = 0;
  for (let at = 0; at < pairs.length; at++) {
    const row = sequence === null ? at : sequence[at];
    let passes = true;
    for (let check = 0; passes && check < checks.length; check++) passes = checks[check](row);
    if (passes) found[number++] = row;
  }
  return found.subarray(0, number);
}

/** @param {import("data").Table} pairs @param {Filter} filter @returns {((row: number) => boolean)[]} */
function tests(pairs, filter) {
  const found = [];
  for (const name of NUMBERS) {
    const wanted = filter[/** @type {"rank"} */ (name)];
    if (typeof wanted === "number" && pairs.has(name)) {
      const { numbers } = pairs.columns[name];
      found.push((/** @type {number} */ row) => numbers[row] === wanted);
    }
  }
  for (const name of WORDS) {
    const wanted = filter[/** @type {"op"} */ (name)];
    if (wanted) found.push(wordTest(pairs, name, (word) => word === wanted));
  }
  const { judgement, module, text } = filter;
  if (judgement) found.push(judgementTest(pairs, judgement));
  if (module) found.push(moduleTest(pairs, module));
  if (text) found.push(textTest(pairs, String(text).toLowerCase()));
  return found;
}

/**
 * Each word is looked at once, however many rows have it.
 * @param {import("data").Table} pairs @param {string} name @param {(word: string) => boolean} fits
 */
function wordTest(pairs, name, fits) {
  const allowed = Uint8Array.from(pairs.words(name), (word) => (fits(word) ? 1 : 0));
  const codes = pairs.codes(name);
  return (/** @type {number} */ row) => codes[row] >= 0 && allowed[codes[row]] === 1;
}

/** @param {import("data").Table} pairs @param {string} judgement */
function judgementTest(pairs, judgement) {
  if (judgement !== NOT_COMPARED) return wordTest(pairs, "judgement", (word) => word === judgement);
  const codes = pairs.codes("judgement");
  return (/** @type {number} */ row) => codes[row] < 0;
}

/** A module with all that is in it. @param {import("data").Table} pairs @param {string} module */
function moduleTest(pairs, module) {
  const inside = module + separator(pairs);
  return wordTest(pairs, "module", (word) => word === module || word.startsWith(inside));
}

/** @param {import("data").Table} pairs @param {string} text */
function textTest(pairs, text) {
  const checks = SEARCHED.map((name) => wordTest(pairs, name, (word) => word.toLowerCase().includes(text)));
  return (/** @type {number} */ row) => checks.some((check) => check(row));
}

/**
 * All rows as they were executed, those of set-up behind the others: nobody looks for them first.
 * @param {import("data").Table} pairs @returns {Int32Array | null}
 */
function setUpLast(pairs) {
  const code = pairs.has("phase") ? pairs.words("phase").indexOf(SET_UP) : -1;
  if (code < 0) return null;
  const codes = pairs.codes("phase");
  return ordered(pairs, SET_UP, () => sorted(Float64Array.from(codes, (one) => Number(one === code)), false));
}

/**
 * All rows in the order of a column; what has no value comes last.
 * @param {import("data").Table} pairs @param {Sort} sort @returns {Int32Array | null}
 */
function order(pairs, sort) {
  if (!pairs.has(sort.column)) return null;
  const key = `${sort.column} ${sort.descending}`;
  return ordered(pairs, key, () => sorted(sortKeys(pairs, sort.column), sort.descending));
}

/**
 * An order that is made once for a table.
 * @param {import("data").Table} pairs @param {string} key @param {() => Int32Array} make @returns {Int32Array}
 */
function ordered(pairs, key, make) {
  const known = orders.get(pairs) ?? new Map();
  orders.set(pairs, known);
  if (!known.has(key)) known.set(key, make());
  return known.get(key);
}

/** @param {Float64Array} keys @param {boolean} descending */
function sorted(keys, descending) {
  const rows = Int32Array.from(keys, (_, row) => row);
  const direction = descending ? -1 : 1;
  return rows.sort((one, other) => {
    const [a, b] = [keys[one], keys[other]];
    if (a !== a || b !== b) return (a !== a ? 1 : 0) - (b !== b ? 1 : 0) || one - other;
    return a === b ? one - other : a < b ? -direction : direction;
  });
}

/** A number for each row by which it is put in order. @param {import("data").Table} pairs @param {string} name */
function sortKeys(pairs, name) {
  const column = pairs.columns[name];
  if (name === "error") return errorsOf(pairs);
  if (column.type !== "words") return Float64Array.from(column.numbers);
  const places = new Map([...column.words].sort().map((word, place) => [word, place]));
  const ranks = column.words.map((word) => /** @type {number} */ (places.get(word)));
  return Float64Array.from(column.numbers, (code) => (code < 0 ? NaN : ranks[code]));
}
