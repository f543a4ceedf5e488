"use strict";

// Tabs: the panels are all shown until this runs, so that the page also reads without it.
const tabs = [...document.querySelectorAll('[role="tab"]')];
const panelOf = (tab) => document.getElementById(tab.getAttribute("aria-controls"));

function select(tab) {
  for (const other of tab.parentElement.querySelectorAll('[role="tab"]')) {
    const chosen = other === tab;
    other.setAttribute("aria-selected", String(chosen));
    other.tabIndex = chosen ? 0 : -1;
    panelOf(other).hidden = !chosen;
  }
}

for (const list of document.querySelectorAll('[role="tablist"]')) {
  const own = [...list.querySelectorAll('[role="tab"]')];
  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (!tab) return;
    event.preventDefault();
    select(tab);
    history.replaceState(null, "", tab.getAttribute("href"));
  });
  list.addEventListener("keydown", (event) => {
    const here = own.indexOf(document.activeElement);
    const goal = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: own.length - 1 }[event.key];
    if (event.key === " ") document.activeElement.click();
    if (event.key === " " || goal !== undefined) event.preventDefault();
    if (here < 0 || goal === undefined) return;
    const next = own[(goal + own.length) % own.length];
    next.focus();
    next.click();
  });
  select(own[0]);
}

// Sorting: numbers by their full value, names by the alphabet, empty cells always last.
const nameOf = (row) => row.dataset.name ?? row.cells[0].textContent;

function sortBy(header) {
  const table = header.closest("table");
  const column = header.cellIndex;
  const was = header.getAttribute("aria-sort");
  const firstDescending = column > 0 && !header.textContent.includes("\u2193");
  const descending = was === "none" ? firstDescending : was === "ascending";
  for (const other of header.parentElement.cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const sign = descending ? -1 : 1;
  const key = (row) => row.cells[column].dataset.value;
  const compare = (a, b) => {
    if (column === 0) return sign * nameOf(a).localeCompare(nameOf(b));
    if (key(a) === undefined || key(b) === undefined) return (key(a) === undefined) - (key(b) === undefined);
    return sign * (Number(key(a)) - Number(key(b)));
  };
  const body = table.querySelector("tbody.sorted");
  body.append(...[...body.rows].sort(compare));
}

for (const header of document.querySelectorAll("th[aria-sort]")) {
  header.firstElementChild.addEventListener("click", () => sortBy(header));
}

// Filters: a row is shown if it has every chosen tag.
for (const form of document.querySelectorAll("form.filter")) {
  const rows = [...form.parentElement.querySelectorAll("tr[data-tags]")];
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => {
    const chosen = [...form.querySelectorAll("select, :checked:not(option)")].map((one) => one.value).filter(Boolean);
    for (const row of rows) row.hidden = !chosen.every((tag) => JSON.parse(row.dataset.tags).includes(tag));
    form.querySelector("output").value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} attentions`;
  });
}

// Records: built when asked for, since there may be thousands.
const { keys, strings, records } = JSON.parse(document.getElementById("record-data").textContent);
const PAGE = 50;
const list = document.getElementById("list");
const find = document.getElementById("find");
const more = document.getElementById("more");
let wanted = {};
let matching = [];

function element(tag, text, ...children) {
  const made = document.createElement(tag);
  made.append(text, ...children);
  return made;
}

function matches([cell, , , facts], words) {
  for (const [key, value] of Object.entries(wanted)) if (strings[cell[keys.indexOf(key)]] !== value) return false;
  if (words.length === 0) return true;
  const text = [...cell, ...facts.map(([, value]) => value)].map((number) => strings[number]).join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function shown([cell, metrics, href, facts]) {
  const part = (key) => strings[cell[keys.indexOf(key)]];
  const where = ["task", "dataset", "config_variant", "backbone"].map(part).filter(Boolean).join("/");
  const details = element("details", "");
  const numbers = metrics.map(([name, value]) => `${strings[name]} ${value ?? "NaN or inf"}`).join(", ");
  const summary = element("summary", element("strong", part("attention")), ` ${part("pattern")}, ${where}`);
  summary.append(element("small", `preset ${part("preset")}, seed ${part("seed")}`));
  const link = element("a", decodeURIComponent(href.split("/").pop()));
  link.href = href;
  const facing = element("dl", element("dt", "metrics"), element("dd", numbers), element("dt", "record"), element("dd", link));
  for (const [name, text] of facts) facing.append(element("dt", strings[name]), element("dd", strings[text]));
  details.append(summary, facing);
  return details;
}

function showMore() {
  const next = matching.slice(list.childElementCount, list.childElementCount + PAGE);
  list.append(...next.map(shown));
  if (matching.length === 1) list.firstElementChild.open = true;
  more.hidden = list.childElementCount >= matching.length;
}

function showRecords() {
  const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
  matching = records.filter((record) => matches(record, words));
  list.replaceChildren();
  showMore();
  const filters = Object.entries(wanted).map(([key, value]) => `${key} ${value}`).join(", ");
  document.getElementById("found").textContent =
    `${matching.length} of ${records.length} records` + (filters ? `: ${filters}` : "");
}

find.addEventListener("input", showRecords);
find.form.addEventListener("submit", (event) => event.preventDefault());
find.form.addEventListener("reset", () => {
  wanted = {};
  setTimeout(showRecords);
});
more.addEventListener("click", showMore);

// The address says what to show: #records?attention=abc&pattern=NS, or the panel of a tab.
function followAddress() {
  const [place, query] = location.hash.slice(1).split("?");
  if (place === "records" && query !== undefined) {
    wanted = Object.fromEntries([...new URLSearchParams(query)].filter(([key]) => keys.includes(key)));
    find.value = "";
    showRecords();
    document.getElementById("records").scrollIntoView();
    document.getElementById("records-heading").focus({ preventScroll: true });
  }
  const tab = tabs.find((one) => one.getAttribute("aria-controls") === place);
  if (tab) select(tab);
}

addEventListener("hashchange", followAddress);
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='#']");
  if (link && link.hash === location.hash) followAddress(); // the address stays, and so says nothing
});
showRecords();
followAddress();
