/**
 * Calls that only one run has: among the rows of pairs they stand where they would be if they had a partner.
 * @module lone_calls
 */
import { loneSide } from "calls";

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
 * Where a finding about a call without a partner stands in the run; null if the tables do not know it.
 * @param {any} content @param {import("calls").Place} found @returns {number | null}
 */
export function placeAlong({ tables }, found) {
  const side = loneSide(found);
  const row = side === null ? null : rowAlone(tables.unmatched, found, side);
  if (side === null || row === null) return null;
  const { pairs, unmatched } = tables;
  const [rank, step, id] = ["rank", "step", "id"].map((name) => unmatched.number(name, row));
  return placesAlong(pairs, rank, step, side)(id);
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
