/**
 * Calls that only one run has: among the rows of pairs they stand where they would be if they had a partner.
 * @module lone_calls
 */
import { findRow, rowsOfName, toldAlone } from "calls";

/**
 * A place in the run for each call of one run: behind the pair that this run has begun last before it.
 * @param {import("data").Table} pairs @param {number} rank @param {number} step @param {"reference" | "target"} side
 * @returns {(id: number) => number} a row and a half; -0.5 for what comes before all
 */
export function placesAlong(pairs, rank, step, side) {
  const ids = pairs.columns[`id_${side}`].numbers;
  // A module's outputs stand behind the calls inside it: where a call begins is its first row.
  const begins = rowsOf(pairs, rank, step).sort((one, other) => ids[one] - ids[other] || other - one);
  const first = begins.reduce((least, row) => Math.min(least, row), pairs.length);
  return (id) => {
    const number = countBelow(begins, ids, id);
    if (number === 0) return first - 0.5;
    let row = begins[number - 1];
    while (ids[row + 1] === ids[row]) row++;
    return row + 0.5;
  };
}

/**
 * How many of the rows, which are in the order of their ids, have a smaller one.
 * @param {number[]} rows @param {import("data").Numbers} ids @param {number} id
 */
function countBelow(rows, ids, id) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ids[rows[middle]] < id) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param {import("data").Table} pairs @param {number} rank @param {number} step */
function rowsOf(pairs, rank, step) {
  const [ranks, steps] = [pairs.columns.rank.numbers, pairs.columns.step.numbers];
  const found = [];
  for (let row = 0; row < pairs.length; row++) if (ranks[row] === rank && steps[row] === step) found.push(row);
  return found;
}

/**
 * The one run that has the call of a finding; null if it has a partner. Of many such calls a finding tells a few: the
 * tables know the others. Its name is the target's, or the reference's if only that makes it.
 * @param {any} content @param {import("calls").Place} found @returns {"reference" | "target" | null}
 */
export function loneSide({ tables }, found) {
  const { pairs, unmatched } = tables;
  const told = toldAlone(found);
  if (told !== null || unmatched === undefined || rowsOfName(pairs, "target", found).length) return told;
  if (rowAlone(unmatched, found, "target") !== null) return "target";
  return rowAlone(unmatched, found, "reference") === null ? null : "reference";
}

/**
 * The row of a finding; null if no row is that, or if only one run makes its call.
 * @param {any} content @param {import("calls").Place} found @returns {number | null}
 */
export function rowOfFinding(content, found) {
  return loneSide(content, found) === null ? findRow(content.tables.pairs, found) : null;
}

/**
 * Where the answer stands in the run; null if the tables do not know it.
 * @param {any} content @returns {number | null}
 */
export function answerPlace(content) {
  const [first] = content.summary.findings;
  return first === undefined ? null : (rowOfFinding(content, first) ?? placeAlong(content, first));
}

/**
 * Where a finding about a call without a partner stands in the run; null if the tables do not know it.
 * @param {any} content @param {import("calls").Place} found @returns {number | null}
 */
function placeAlong(content, found) {
  const { pairs, unmatched } = content.tables;
  const side = loneSide(content, found);
  const row = side === null ? null : rowAlone(unmatched, found, side);
  if (side === null || row === null) return null;
  const [rank, step, id] = ["rank", "step", "id"].map((name) => unmatched.number(name, row));
  const ids = pairs.columns[`id_${side}`].numbers;
  const isEarlier = (/** @type {number} */ at) =>
    pairs.number("rank", at) === rank && pairs.number("step", at) === step && ids[at] < id;
  let next = Math.ceil(placesAlong(pairs, rank, step, side)(id));
  // Gradients of parameters stand at the end of a backward, though what made them was called long before.
  while (isEarlier(next) && pairs.text("phase", next) !== found.phase) next++;
  return next - 0.5;
}

/** @param {import("data").Table} unmatched @param {import("calls").Place} found @param {string} side */
function rowAlone(unmatched, { rank, step, phase, call }, side) {
  for (let row = 0; row < unmatched.length; row++) {
    const isIt =
      unmatched.text("name", row) === call &&
      unmatched.text("side", row) === side &&
      unmatched.text("phase", row) === phase &&
      unmatched.number("rank", row) === rank &&
      unmatched.number("step", row) === step;
    if (isIt) return row;
  }
  return null;
}
