/**
 * The outputs that were checked: the worst first, then those nearest to their limits, those of set-up last.
 * @module check_outputs
 */
import { VERDICTS, limitShare, passing } from "check_verdicts";
import { el, fill } from "dom";
import { shareText, valueText } from "numbers";

/** So many outputs are listed at once. */
const LISTED = 300;
const COLUMNS = [
  "name",
  "variant",
  "data",
  "device",
  "place",
  "direction",
  "dtype",
  "shape",
  "statistic",
  "limit_share",
  "worst",
  "worst_computed",
  "worst_exact",
  "message",
];

/** @param {import("views").Context} context */
export function createOutputs(context) {
  const { content, word } = context;
  const { details } = content.tables;
  const element = el("section", { class: "card scroll" });
  const columns = COLUMNS.filter((name) => details.has(name));
  const verdictOf = (/** @type {number} */ row) => details.text("verdict", row) ?? "";
  const weights = (/** @type {number} */ row) => [
    VERDICTS.indexOf(verdictOf(row)),
    Number(details.has("phase") && details.text("phase", row) === "setup"),
    -limitShare(details, row),
    row,
  ];

  /** @param {string} name @param {number} row */
  function cell(name, row) {
    const isText = details.columns[name].type === "words";
    if (name === "limit_share") return shareText(details.number(name, row));
    return isText ? (details.text(name, row) ?? "") : valueText(details.number(name, row));
  }

  /** A case that gave no output has a row, too. @param {number[]} rows */
  function heading(rows) {
    const outputs = rows.filter((row) => details.text("place", row) !== null).length;
    const cases = rows.length - outputs;
    return word(cases ? "check.outputs_and_cases" : "check.outputs", { outputs, cases });
  }

  /** @param {number} row */
  function line(row) {
    return el(
      "tr",
      {},
      el("td", {}, el("span", { class: `verdict-word ${verdictOf(row)}` }, verdictOf(row))),
      columns.map((name) => el("td", { class: name === "message" ? "name wide" : "name mono" }, cell(name, row))),
    );
  }

  return {
    element,
    /** @param {import("check_verdicts").Wanted} wanted */
    draw(wanted) {
      const rows = passing(details, wanted).sort((one, other) => firstDifference(weights(one), weights(other)));
      const head = ["verdict", ...columns].map((name) => el("th", { scope: "col" }, word(`check.column.${name}`)));
      fill(
        element,
        el("h2", {}, heading(rows)),
        rows.length > LISTED && el("p", { class: "muted" }, word("check.listed", { listed: LISTED })),
        el(
          "table",
          { class: "plain outputs" },
          el("thead", {}, el("tr", {}, head)),
          el("tbody", {}, rows.slice(0, LISTED).map(line)),
        ),
      );
    },
  };
}

/** @param {number[]} one @param {number[]} other */
function firstDifference(one, other) {
  return one.map((weight, place) => weight - other[place]).find((difference) => difference !== 0) ?? 0;
}
