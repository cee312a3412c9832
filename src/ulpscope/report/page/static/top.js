/**
 * The top of the page: what this is, its verdict, language and theme.
 * @module top
 */
import { el } from "dom";
import { LANGUAGES } from "words";

/** So many parts of a path are shown. */
const PATH_PARTS = 3;

/** @param {import("views").Context} context @returns {HTMLElement} */
export function createTop({ content, store, word }) {
  const { summary } = content;
  return el(
    "header",
    { class: "top" },
    el("h1", {}, `ulpscope ${summary?.command ?? content.kind}`),
    summary?.verdict && el("span", { class: `badge ${summary.verdict}` }, word(`verdict.${summary.verdict}`)),
    el("span", { class: "runs name", title: runs(content, word, (path) => path) }, runs(content, word, shortPath)),
    choice("language", LANGUAGES, store, word),
    choice("theme", ["auto", "light", "dark"], store, word),
  );
}

/**
 * The title of the page in its language: what this is, the verdict, and the name that `given`, the first title, tells.
 * @param {any} content @param {string} given @param {import("views").Context["word"]} word @returns {string}
 */
export function titleOf({ kind, summary }, given, word) {
  const verdict = summary?.verdict;
  const begin = titleBegin(kind, verdict);
  const told = titleBegin(word(`title.${kind}`), verdict && word(`verdict.${verdict}`));
  return given.startsWith(begin) ? told + given.slice(begin.length) : given;
}

/** @param {string} kind @param {string | undefined} verdict of a result; a trace has none */
function titleBegin(kind, verdict) {
  return verdict ? `${kind}: ${verdict} - ` : `${kind}: `;
}

/**
 * @param {any} content @param {import("views").Context["word"]} word
 * @param {(path: string) => string} shown
 */
function runs({ summary, about }, word, shown) {
  if (about) return shown(about);
  if (!summary?.reference || !summary?.target) return "";
  return word("top.runs", { reference: shown(summary.reference), target: shown(summary.target) });
}

/** The end of a long path, which tells it from others. @param {string} path */
function shortPath(path) {
  const parts = path.split("/");
  return parts.length > PATH_PARTS + 1 ? `…/${parts.slice(-PATH_PARTS).join("/")}` : path;
}

/**
 * @param {"language" | "theme"} key @param {string[]} names @param {import("store").Store} store
 * @param {import("views").Context["word"]} word
 */
function choice(key, names, store, word) {
  const label = word(`top.${key}`);
  const change = (/** @type {any} */ event) => store.set({ [key]: event.target.value });
  const options = names.map((name) =>
    el("option", { value: name, selected: name === store.get()[key] }, word(`${key}.${name}`)),
  );
  return el("select", { name: key, "aria-label": label, title: label, on: { change } }, options);
}
