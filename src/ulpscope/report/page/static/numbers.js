/**
 * Numbers as they are shown.
 * @module numbers
 */

/**
 * An error: two digits, as much as it has: `5.9`, `0.12`, `5,900`, `1.0e-3`.
 * @param {number | string | null | undefined} value a number, or a text such as "inf" where JSON has none
 * @returns {string}
 */
export function errorText(value) {
  if (value === null || value === undefined) return "–";
  const number = Number(value === "nan" ? NaN : value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);
  if (Number.isNaN(number)) return value === "nan" ? "NaN" : "–";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  const size = Math.abs(number);
  if (size === 0) return "0";
  if (size >= 0.0095 && size < 99.5) return number.toPrecision(2);
  if (size >= 1 && size < 999500) return Number(number.toPrecision(2)).toLocaleString("en-US");
  return exponential(number, 1);
}

/**
 * A number of a table, with enough digits to tell two alike apart.
 * @param {number} number
 * @returns {string}
 */
export function valueText(number) {
  if (Number.isNaN(number)) return "";
  if (!Number.isFinite(number)) return number > 0 ? "inf" : "-inf";
  if (Number.isInteger(number) && Math.abs(number) < 1e9) return String(number);
  const size = Math.abs(number);
  return size >= 1e-3 && size < 1e6 ? String(Number(number.toPrecision(7))) : exponential(number, 4);
}

/** A whole number. @param {number} number */
export function countText(number) {
  return number.toLocaleString("en-US");
}

/** @param {number} number @param {number} digits */
function exponential(number, digits) {
  return number.toExponential(digits).replace("e+", "e");
}

/** A share of a whole: `3 %`, `0.4 %`, `0 %`; nothing where there is none. @param {number} share */
export function shareText(share) {
  if (Number.isNaN(share)) return "";
  const percent = share * 100;
  return `${percent > 0 && percent < 0.95 ? percent.toPrecision(1) : Math.round(percent)} %`;
}
