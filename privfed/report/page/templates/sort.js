"use strict";
(() => {
  const valueOf = (row, place) => row.cells[place].textContent.trim();
  const numberOf = (text) => (text.startsWith("∞") ? Infinity : Number.parseFloat(text));
  const compare = (a, b) => {
    const [x, y] = [numberOf(a), numberOf(b)];
    if (Number.isNaN(x) !== Number.isNaN(y)) return Number.isNaN(x) ? 1 : -1;
    if (Number.isNaN(x)) return a.localeCompare(b);
    return x === y ? 0 : x - y;
  };
  const sortBy = (table, heading, place) => {
    const down = heading.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "descending" : "ascending");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => (down ? -1 : 1) * compare(valueOf(a, place), valueOf(b, place)));
    body.append(...rows);
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tHead.rows[0].cells].forEach((heading, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sortBy(table, heading, place));
      heading.append(button);
    });
  }
})();
