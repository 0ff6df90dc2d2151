const value = cell => cell.dataset.value ?? cell.textContent;
const sort = (header, table) => {
  const column = [...header.parentNode.children].indexOf(header);
  const down = header.getAttribute("aria-sort") !== "descending";
  const rows = [...table.tBodies[0].rows];
  const numbers = rows.every(row => !isNaN(value(row.cells[column])));
  rows.sort((a, b) => {
    const [x, y] = [a, b].map(row => value(row.cells[column]));
    if (x === "" || y === "") return (x === "") - (y === "");
    return (down ? -1 : 1) * (numbers ? x - y : x.localeCompare(y, undefined, {numeric: true}));
  });
  table.tBodies[0].append(...rows);
  for (const other of header.parentNode.children) other.removeAttribute("aria-sort");
  header.setAttribute("aria-sort", down ? "descending" : "ascending");
};
for (const table of document.querySelectorAll("table.sortable"))
  for (const header of table.tHead.rows[0].cells) {
    header.tabIndex = 0;
    header.onclick = () => sort(header, table);
    header.onkeydown = event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort(header, table);
    };
  }
