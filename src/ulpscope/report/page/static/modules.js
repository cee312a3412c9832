/**
 * Names of modules.
 * @module modules
 */

/**
 * What parts names of modules: a dot in torch's, a slash in those of networks' operators.
 * @param {import("data").Table} table with a column `module`
 */
export function separator(table) {
  const names = table.words("module");
  const number = (/** @type {string} */ sign) => names.filter((name) => name.includes(sign)).length;
  return number("/") > number(".") ? "/" : ".";
}
