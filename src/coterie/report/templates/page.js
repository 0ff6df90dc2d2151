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

// Figures answer the pointer: the value nearest to it, and names on and off. A figure shown on paper or without this
// script is complete.
const hidden = new Set();
const figures = [...document.querySelectorAll("figure[data-found]")].map(figure => {
  const found = JSON.parse(figure.dataset.found), svg = figure.querySelector("svg");
  const tip = document.createElement("output");
  tip.className = "tip";
  tip.hidden = true;
  figure.append(tip);
  return {figure, found, svg, tip};
});
const show = () => {
  for (const {found, svg} of figures)
    for (const [kind, shown] of [["parts", "visibility"], ["keys", "opacity"]])
      for (const [id, name] of Object.entries(found[kind])) {
        const part = svg.getElementById(id), off = hidden.has(found.names[name]);
        if (!part) continue;
        part.style[shown] = off ? (kind === "parts" ? "hidden" : "0.35") : "";
        if (kind === "keys") part.setAttribute("aria-pressed", !off);
      }
};
const nearest = (found, box, x, y) => {
  let best = null, least = 24 * 24;
  for (const point of found.points) {
    if (hidden.has(found.names[point[2]])) continue;
    const away = (point[0] * box.width - x) ** 2 + (point[1] * box.height - y) ** 2;
    if (away < least) [best, least] = [point, away];
  }
  return best;
};
for (const {figure, found, svg, tip} of figures) {
  const point = event => {
    const box = svg.getBoundingClientRect(), outer = figure.getBoundingClientRect();
    const best = nearest(found, box, event.clientX - box.left, event.clientY - box.top);
    tip.hidden = !best;
    if (!best) return;
    tip.textContent = (best[2] < 0 ? "" : found.names[best[2]] + ", ") + best[3];
    const left = box.left - outer.left + best[0] * box.width, top = box.top - outer.top + best[1] * box.height;
    tip.style.left = Math.max(0, Math.min(left + 12, outer.width - tip.offsetWidth - 4)) + "px";
    tip.style.top = Math.max(0, top - tip.offsetHeight - 8) + "px";
  };
  svg.addEventListener("pointermove", point);
  svg.addEventListener("pointerdown", point);
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  // What can be pressed must not be a part of an image, which has no parts for those who hear the page.
  if (Object.keys(found.keys).length) svg.setAttribute("role", "group");
  for (const [id, name] of Object.entries(found.keys)) {
    const key = svg.getElementById(id);
    if (!key) continue;
    const turn = () => {
      const called = found.names[name];
      hidden.has(called) ? hidden.delete(called) : hidden.add(called);
      show();
    };
    key.classList.add("key");
    key.tabIndex = 0;
    key.setAttribute("role", "button");
    key.setAttribute("aria-pressed", true);
    key.setAttribute("aria-label", "show " + found.names[name]);
    key.onclick = turn;
    key.onkeydown = event => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      turn();
    };
  }
}

// A link to a part that is folded unfolds it, and paper shows everything.
const unfold = () => {
  const part = location.hash && document.getElementById(location.hash.slice(1))?.querySelector("details.part");
  if (part) part.open = true;
};
addEventListener("hashchange", unfold);
unfold();
addEventListener("beforeprint", () => { for (const part of document.querySelectorAll("details")) part.open = true; });
