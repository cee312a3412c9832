/**
 * Calls among the rows of pairs: a call has a row for each of its tensors.
 * @module calls
 */

/** Roles of tensors that a call makes. */
const MADE = new Set(["output", "grad_input", "parameter_after", "state_after"]);

/**
 * The row of a place that a finding names; null if no row is that.
 * @param {import("data").Table} pairs
 * @param {{rank?: number, step?: number, phase?: string, call: string | null, tensor?: string | null}} place
 * @returns {number | null}
 */
export function findRow(pairs, place) {
  const rows = rowsNamed(pairs, place);
  const exact = rows.filter((row) => place.tensor != null && pairs.text("place", row) === place.tensor);
  return worst(pairs, exact.length ? exact : rows);
}

/** @param {import("data").Table} pairs @param {any} place @returns {number[]} */
function rowsNamed(pairs, { rank, step, phase, call }) {
  if (call == null) return [];
  for (const column of ["call_target", "call_reference"]) {
    const code = pairs.words(column).indexOf(call);
    const codes = pairs.codes(column);
    const found = [];
    for (let row = 0; code >= 0 && row < pairs.length; row++) {
      if (codes[row] !== code) continue;
      if (rank !== undefined && pairs.number("rank", row) !== rank) continue;
      if (step !== undefined && pairs.number("step", row) !== step) continue;
      if (phase !== undefined && pairs.text("phase", row) !== phase) continue;
      found.push(row);
    }
    if (found.length) return found;
  }
  return [];
}

/** The row with the largest error, those made here first. @param {import("data").Table} pairs @param {number[]} rows */
function worst(pairs, rows) {
  const weight = (/** @type {number} */ row) => {
    const error = pairs.number("error", row);
    const made = pairs.text("judgement", row) === "made_here" ? 1e300 : 0;
    return made + (MADE.has(pairs.text("role", row) ?? "") ? 1e-300 : 0) + (Number.isNaN(error) ? 0 : error);
  };
  return rows.reduce(
    (best, row) => (best === null || weight(row) > weight(best) ? row : best),
    /** @type {number | null} */ (null),
  );
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
