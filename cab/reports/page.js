"use strict";

const rowsOf = (table) => [...table.querySelectorAll("tr[data-name]")];
const headersOf = (table) => [...table.querySelectorAll("th[aria-sort]")];
const bodies = new Map(); // rows by body, as in the file

for (const table of document.querySelectorAll("table")) {
  bodies.set(table, [...table.tBodies].map((body) => [body, [...body.rows]]));
  for (const header of headersOf(table)) header.firstElementChild.addEventListener("click", () => sortBy(header));
}

// Sorting: numbers by their full value, names by the alphabet, missing values last; groups of rows dissolve.
function sortBy(header, descending) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const was = header.getAttribute("aria-sort");
  const first = column > 0 && header.dataset.better !== "lower";
  const isDescending = descending ?? (was === "none" ? first : was === "ascending");
  mark(table, header, isDescending ? "descending" : "ascending");
  table.tBodies[0].append(...rowsOf(table).sort(by(column, isDescending ? -1 : 1)));
}

function by(column, sign) {
  const key = (row) => row.cells[column]?.dataset.value;
  return (a, b) => {
    if (!a.dataset.name || !b.dataset.name) return Boolean(a.dataset.name) - Boolean(b.dataset.name);
    if (column === 0) return sign * a.dataset.name.localeCompare(b.dataset.name);
    if (key(a) === undefined || key(b) === undefined) return (key(a) === undefined) - (key(b) === undefined);
    return sign * (Number(key(a)) - Number(key(b)));
  };
}

function restore(table, column) {
  for (const [body, rows] of bodies.get(table)) body.append(...rows.sort(by(column, -1)));
  mark(table);
}

function mark(table, header, order) {
  for (const other of headersOf(table)) other.setAttribute("aria-sort", other === header ? order : "none");
  table.classList.toggle("flat", header !== undefined);
  if (table === board) form.elements.sort.value = header ? header.cellIndex : "";
}

// The board: chosen patterns and requirements hide columns and rows, and sort by the first ability that is left.
const board = document.getElementById("suite-board-table");
const form = document.querySelector("#board form");

function choose(event) {
  const { pattern, sort, minor } = form.elements;
  const tags = [pattern.value, ...[...form.querySelectorAll("[value]:checked:not(option)")].map((box) => box.value)].filter(Boolean);
  const headers = headersOf(board);
  const shown = headers.map(({ dataset }) =>
    (!pattern.value || !dataset.pattern || dataset.pattern === pattern.value) &&
    (!("minor" in dataset) || minor.checked || (pattern.value && dataset.pattern === pattern.value)));
  for (const row of rowsOf(board)) row.hidden = !tags.every((tag) => row.dataset.tags.split(" ").includes(tag));
  for (const row of [headers[0].parentElement, ...rowsOf(board)]) {
    [...row.cells].forEach((cell, column) => { cell.hidden = !shown[column]; });
  }
  let column = 1;
  for (const block of [...board.querySelectorAll(".blocks > *")].slice(1)) {
    block.dataset.span ??= block.colSpan;
    const width = shown.slice(column, column += Number(block.dataset.span)).filter(Boolean).length;
    block.hidden = width === 0;
    if (width) block.colSpan = width;
  }
  for (const [body, rows] of bodies.get(board)) body.hidden = rows.every((row) => row.hidden || !row.dataset.name);
  board.tBodies[0].hidden = false;
  const options = headers.slice(1).map((header, at) => [header.textContent, at + 1]).filter(([, at]) => shown[at]);
  sort.replaceChildren(new Option("family", ""), ...options.map(([text, at]) => new Option(text, at)));
  const first = shown.indexOf(true, 1);
  if (event && tags.length) sortBy(headers[first], true);
  else restore(board, first);
  const rows = rowsOf(board);
  form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} attentions`;
}

if (board) {
  const labels = headersOf(board).map((header) => header.textContent);
  for (const row of rowsOf(board)) for (const cell of row.cells) cell.dataset.label = labels[cell.cellIndex];
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    if (event.target.name !== "sort") choose(event);
    else if (event.target.value) sortBy(headersOf(board)[event.target.value]);
    else choose();
  });
  choose();
}

// A link to something that is folded opens it.
function reveal() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  for (let fold = target?.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target?.scrollIntoView();
}
window.addEventListener("hashchange", reveal);
if (location.hash) reveal();
