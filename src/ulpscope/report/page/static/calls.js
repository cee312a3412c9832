/**
 * Calls among the rows of pairs: a call has a row for each of its tensors.
 * @module calls
 */

/** Roles of tensors that a call makes. */
export const MADE = new Set(["output", "grad_input", "parameter_after", "state_after"]);

/**
 * What a finding, a note or a neighbour says about where it is.
 * @typedef {{rank?: number | null, step?: number | null, phase?: string | null, call: string | null,
 *   tensor?: string | null, evidence?: any}} Place
 */

/**
 * The row of a place that a finding names; null if no row is that.
 * @param {import("data").Table | undefined} pairs @param {Place} place @returns {number | null}
 */
export function findRow(pairs, place) {
  if (pairs === undefined) return null;
  const rows = rowsNamed(pairs, place);
  const exact = rows.filter((row) => place.tensor != null && pairs.text("place", row) === place.tensor);
  return worst(pairs, exact.length ? exact : rows);
}

/**
 * The one run that is told to have a call; null if none is.
 * @param {Place} place @returns {"reference" | "target" | null}
 */
export function toldAlone({ call, evidence }) {
  for (const side of /** @type {const} */ (["reference", "target"])) {
    if (evidence?.[`only_${side}`]?.includes(call)) return side;
  }
  return null;
}

/** @param {import("data").Table} pairs @param {Place} place @returns {number[]} */
export function rowsNamed(pairs, place) {
  // Another call of the other run may have the name of one that has no partner.
  if (toldAlone(place) !== null) return [];
  const found = rowsOfName(pairs, "target", place);
  return found.length ? found : rowsOfName(pairs, "reference", place);
}

/**
 * The rows whose call has this name in one of the runs.
 * @param {import("data").Table} pairs @param {"reference" | "target"} side @param {Place} place @returns {number[]}
 */
export function rowsOfName(pairs, side, { rank, step, phase, call }) {
  const code = call == null ? -1 : pairs.words(`call_${side}`).indexOf(call);
  const codes = pairs.codes(`call_${side}`);
  const found = [];
  for (let row = 0; code >= 0 && row < pairs.length; row++) {
    if (codes[row] !== code) continue;
    if (rank != null && pairs.number("rank", row) !== rank) continue;
    if (step != null && pairs.number("step", row) !== step) continue;
    if (phase != null && pairs.text("phase", row) !== phase) continue;
    found.push(row);
  }
  return found;
}

/**
 * The row that is made here, then the one with the largest error.
 * @param {import("data").Table} pairs @param {number[]} rows
 */
export function worst(pairs, rows) {
  const weights = (/** @type {number} */ row) => [
    Number(judgementOf(pairs, row) === "made_here"),
    errorOf(pairs, row) || 0,
    Number(MADE.has(pairs.text("role", row) ?? "")),
  ];
  const isWorse = (/** @type {number} */ row, /** @type {number} */ best) => {
    const [mine, others] = [weights(row), weights(best)];
    const at = mine.findIndex((weight, place) => weight !== others[place]);
    return at >= 0 && mine[at] > others[at];
  };
  return rows.reduce(
    (best, row) => (best === null || isWorse(row, best) ? row : best),
    /** @type {number | null} */ (null),
  );
}

/** @type {WeakMap<import("data").Table, Float64Array>} */
const errors = new WeakMap();

/**
 * The errors of all rows. Where inf or nan stand on one side only, `error` tells of the other elements alone: it is
 * infinite then. NaN where nothing was measured.
 * @param {import("data").Table} pairs @returns {Float64Array}
 */
export function errorsOf(pairs) {
  const known = errors.get(pairs);
  if (known) return known;
  const found = Float64Array.from(pairs.columns.error?.numbers ?? new Float64Array(pairs.length).fill(NaN));
  const mismatched = pairs.has("mismatched") ? pairs.columns.mismatched.numbers : null;
  mismatched?.forEach((number, row) => {
    if (number > 0) found[row] = Infinity;
  });
  errors.set(pairs, found);
  return found;
}

/** @param {import("data").Table} pairs @param {number} row @returns {number} */
export function errorOf(pairs, row) {
  return errorsOf(pairs)[row];
}

/**
 * A cell as it is shown.
 * @param {import("data").Table} pairs @param {string} name @param {number} row @returns {number}
 */
export function shownNumber(pairs, name, row) {
  return name === "error" ? errorOf(pairs, row) : pairs.number(name, row);
}

/** Columns whose words are the page's, which has them in each language. */
const TRANSLATED = ["phase", "role", "measured"];

/**
 * A text as it is shown; null where there is none.
 * @param {import("data").Table} pairs @param {string} name @param {number} row
 * @param {import("views").Context["word"]} word @returns {string | null}
 */
export function shownText(pairs, name, row, word) {
  const text = pairs.text(name, row);
  return text && TRANSLATED.includes(name) ? word(`${name}.${text}`) : text;
}

/** @type {{pairs: import("data").Table | null, row: number, rows: number[]}} */
let lastAsked = { pairs: null, row: -1, rows: [] };

/**
 * All rows of the call that a row belongs to; those of a module's outputs stand behind the calls inside it.
 * @param {import("data").Table} pairs @param {number} row @returns {number[]}
 */
export function rowsOfCall(pairs, row) {
  if (lastAsked.pairs === pairs && lastAsked.row === row) return lastAsked.rows;
  const names = ["id_target", "id_reference", "rank", "step"].filter((name) => pairs.has(name));
  const tests = names.map((name) => ({ numbers: pairs.columns[name].numbers, wanted: pairs.number(name, row) }));
  const rows = [];
  for (let other = 0; other < pairs.length; other++) {
    if (tests.every(({ numbers, wanted }) => Object.is(numbers[other], wanted))) rows.push(other);
  }
  lastAsked = { pairs, row, rows };
  return rows;
}

/** What a row was judged to be. @param {import("data").Table} pairs @param {number} row @returns {string} */
export function judgementOf(pairs, row) {
  return pairs.text("judgement", row) ?? "not_compared";
}

/** The name of a call: the target's, or the reference's. @param {import("data").Table} pairs @param {number} row */
export function callName(pairs, row) {
  return pairs.text("call_target", row) ?? pairs.text("call_reference", row) ?? "";
}
