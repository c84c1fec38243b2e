const SILENT_MS = 20000;
const query = new URLSearchParams(location.search);
query.set("revision", document.documentElement.dataset.revision);
const source = new EventSource("events?" + query);
const main = document.querySelector("main");
const sorting = {};
let heard = Date.now();
let title = document.title;

function show(state, isLive) {
  document.getElementById("state").textContent = state;
  document.title = isLive ? title : "disconnected - spark-ssp";
  document.body.classList.toggle("stale", !isLive);
}

function create(name) {
  const table = document.getElementById(name.slice(0, name.lastIndexOf("-")));
  const rows = table && table.querySelector("tbody.rows");
  const element = document.createElement(rows ? "tr" : "div");
  element.id = name;
  (rows || main).append(element);
  return element;
}

function keepScroll(element, change) {
  const left = [...element.querySelectorAll(".frame")].map(each => each.scrollLeft);
  change();
  element.querySelectorAll(".frame").forEach((each, n) => { each.scrollLeft = left[n] || 0; });
}

function replace(element, html) {
  const open = {};
  element.querySelectorAll("details").forEach(each => { open[each.dataset.key] = each.open; });
  keepScroll(element, () => { element.innerHTML = html; });
  element.querySelectorAll("details").forEach(each => {
    if (each.dataset.key in open) each.open = open[each.dataset.key];
  });
}

function arrange(order) {
  let next = main.firstElementChild;
  for (const element of order.map(name => document.getElementById(name))) {
    if (element === next) next = next.nextElementSibling;
    else keepScroll(element, () => main.insertBefore(element, next));
  }
}

function value(row, column) {
  const cell = row.cells[column];
  return cell ? cell.dataset.v || cell.textContent : "";
}

function sort(table) {
  const { column, sign } = sorting[table.id] || { column: 0, sign: -1 };
  const body = table.querySelector("tbody.rows");
  const rows = [...body.rows].map(row => [value(row, column), row]);
  const before = rows.map(each => each[1]);
  rows.sort((one, other) => !one[0] - !other[0] ||
    sign * one[0].localeCompare(other[0], "en", { numeric: true }));
  if (rows.some((each, n) => each[1] !== before[n])) body.append(...rows.map(each => each[1]));
  table.querySelectorAll("th").forEach((head, n) => {
    head.setAttribute("aria-sort", n !== column ? "none" : sign < 0 ? "descending" : "ascending");
  });
}

function find(table) {
  const words = table.querySelector("input").value.toLowerCase().split(/\s+/);
  let shown = 0;
  for (const row of table.querySelector("tbody.rows").rows) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every(word => text.includes(word));
    shown += !row.hidden;
  }
  table.querySelector("output").textContent = shown + " shown";
}

function equip(table) {
  const box = document.createElement("p");
  const input = document.createElement("input");
  input.type = "search";
  input.placeholder = "search";
  input.setAttribute("aria-label", "search the table");
  input.addEventListener("input", () => find(table));
  box.append(input, " ", document.createElement("output"));
  table.querySelector(".scroll").before(box);
  table.querySelectorAll("th").forEach((head, column) => {
    const button = document.createElement("button");
    button.textContent = head.textContent;
    button.addEventListener("click", () => {
      const last = sorting[table.id] || { column: 0, sign: -1 };
      sorting[table.id] = { column, sign: last.column === column ? -last.sign : 1 };
      sort(table);
    });
    head.replaceChildren(button);
  });
  table.querySelector("details").addEventListener("toggle", () => refresh(table));
}

function refresh(table) {
  if (!table.querySelector("details").open) return;
  sort(table);
  find(table);
}

function tables() {
  for (const body of main.querySelectorAll(":scope > div > details > .scroll tbody.rows")) {
    const table = body.closest("main > div");
    if (!table.querySelector("input")) equip(table);
    refresh(table);
  }
}

source.onmessage = event => {
  const change = JSON.parse(event.data);
  heard = Date.now();
  title = change.title;
  if (change.all) main.replaceChildren();
  for (const [name, html] of Object.entries(change.parts || {})) {
    replace(document.getElementById(name) || create(name), html);
  }
  for (const [name, html] of Object.entries(change.cells || {})) {
    const row = document.getElementById(name);
    row.cells[1].remove();
    row.cells[0].remove();
    row.insertAdjacentHTML("afterbegin", html);
  }
  for (const name of change.gone || []) document.getElementById(name)?.remove();
  if (change.order) arrange(change.order);
  tables();
  show("live", true);
};
source.onerror = () => {
  show(source.readyState === EventSource.CLOSED
    ? "not updated: the server refuses, because too many pages are open or the token is wrong"
    : "disconnected: the program has ended, or restarts; this is the past", false);
};
setInterval(() => {
  if (Date.now() - heard > SILENT_MS) show("no answer for 20 s; this is the past", false);
}, 5000);
tables();
