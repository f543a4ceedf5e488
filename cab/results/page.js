"use strict";

const rowsOf = (table) => [...table.tBodies[0].rows];
const headersOf = (table) => [...table.tHead.querySelectorAll("[aria-sort]")];

for (const table of document.querySelectorAll("table")) {
  for (const header of headersOf(table)) header.firstElementChild.addEventListener("click", () => sortBy(header));
}

// Sorting: numbers by their full value, texts by the alphabet, missing values last.
function sortBy(header, descending) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const was = header.getAttribute("aria-sort");
  const rows = rowsOf(table);
  const isText = rows.every((row) => row.cells[column].dataset.value === undefined);
  const first = !isText && header.dataset.better !== "lower";
  const isDescending = descending ?? (was === "none" ? first : was === "ascending");
  const sign = isDescending ? -1 : 1;
  const key = (row) => isText ? row.cells[column].textContent : row.cells[column].dataset.value;
  const compare = (a, b) => isText ? a.localeCompare(b) : Number(a) - Number(b);
  rows.sort((a, b) => {
    if (key(a) === undefined || key(b) === undefined) return (key(a) === undefined) - (key(b) === undefined);
    return sign * compare(key(a), key(b));
  });
  table.tBodies[0].append(...rows);
  for (const other of headersOf(table)) {
    other.setAttribute("aria-sort", other !== header ? "none" : isDescending ? "descending" : "ascending");
  }
  if (table === board) form.elements.sort.value = column;
}

// The board: a chosen pattern and requirements hide columns and rows, and sort by the first ability that is left.
const board = document.getElementById("suite-board-table");
const form = document.querySelector("#board form");

function choose(event) {
  const { pattern, sort } = form.elements;
  const tags = [pattern.value, ...[...form.querySelectorAll("input:checked")].map((box) => box.value)].filter(Boolean);
  const headers = headersOf(board);
  const shown = headers.map(({ dataset }) => !pattern.value || !dataset.pattern || dataset.pattern === pattern.value);
  const rows = rowsOf(board);
  for (const row of rows) row.hidden = !tags.every((tag) => row.dataset.tags.split(" ").includes(tag));
  for (const row of [headers[0].parentElement, ...rows]) {
    [...row.cells].forEach((cell, column) => { cell.hidden = !shown[column]; });
  }
  const options = headers.map((header, at) => [header.textContent, at]).filter(([, at]) => shown[at]);
  sort.replaceChildren(...options.map(([text, at]) => new Option(text, at)));
  if (event) sortBy(headers.find((header, at) => shown[at] && header.dataset.better === "higher"), true);
  else sort.value = 1; // families
  form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} attentions`;
}

if (board) {
  const labels = headersOf(board).map((header) => header.textContent);
  for (const row of rowsOf(board)) for (const cell of row.cells) cell.dataset.label = labels[cell.cellIndex];
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("change", (event) => {
    if (event.target.name === "sort") sortBy(headersOf(board)[event.target.value]);
    else choose(event);
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
