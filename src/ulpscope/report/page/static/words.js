/**
 * The words of the page in two languages.
 * @module words
 */

const PHRASES = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("words")).textContent ?? "{}");
let language = "en";

export const LANGUAGES = Object.keys(PHRASES);

/** @param {string} name */
export function setLanguage(name) {
  language = LANGUAGES.includes(name) ? name : "en";
  document.documentElement.lang = language === "zh" ? "zh-CN" : language;
}

/**
 * A phrase in the language of the page; `{name}` in it is replaced by the parameter of that name.
 * @param {string} key
 * @param {Record<string, string | number>} [params]
 * @returns {string}
 */
export function word(key, params = {}) {
  const phrase = PHRASES[language][key] ?? PHRASES.en[key] ?? key;
  return phrase.replace(/\{(\w+)\}/g, (/** @type {string} */ place, /** @type {string} */ name) =>
    name in params ? shown(params[name]) : place,
  );
}

/** A text that came in both languages. @param {{en: string, zh: string} | string | null} told @returns {string} */
export function told(told) {
  if (told === null || told === undefined) return "";
  return typeof told === "string" ? told : (told[/** @type {"en" | "zh"} */ (language)] ?? told.en);
}

/** @param {string | number} value */
function shown(value) {
  return typeof value === "number" ? value.toLocaleString("en-US") : value;
}

/** Whether there is a phrase for this key. @param {string} key */
export function hasWord(key) {
  return key in PHRASES.en;
}
