/**
 * Verdicts of a check, and which outputs are looked at.
 * @module check_verdicts
 */

/** The worst first. */
export const VERDICTS = ["CRASH", "TIMEOUT", "FAIL", "WARN", "UNTESTED", "PASS", "SKIP"];
/** What stands for outputs of no dtype: those of calls that made none. */
export const NO_DTYPE = "–";

/** @typedef {{op: string | null, dtype: string | null, verdict: string | null, text: string}} Wanted */

/** The rows that are asked for. @param {import("data").Table} details @param {Wanted} wanted @returns {number[]} */
export function passing(details, { op, dtype, verdict, text }) {
  const searched = text.toLowerCase();
  const rows = [];
  for (let row = 0; row < details.length; row++) {
    const names = `${details.text("op", row) ?? ""} ${details.text("name", row) ?? ""}`.toLowerCase();
    const passes =
      names.includes(searched) &&
      (verdict === null || details.text("verdict", row) === verdict) &&
      (op === null || details.text("op", row) === op) &&
      (dtype === null || (details.text("dtype", row) ?? NO_DTYPE) === dtype);
    if (passes) rows.push(row);
  }
  return rows;
}

/** @param {Record<string, number>} counts by verdict */
export function worst(counts) {
  return VERDICTS.find((verdict) => counts[verdict] > 0) ?? "";
}

/**
 * How much of its limit an output takes up; nothing where it is the rounded truth.
 * @param {import("data").Table} details @param {number} row @returns {number}
 */
export function limitShare(details, row) {
  return (details.has("limit_share") && details.number("limit_share", row)) || 0;
}
