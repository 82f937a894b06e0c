// View: searches continue until they are complete, further rows are appended, and rows of chunks select in the strip.
// The server has escaped what it sends; the pages' policy lets only these two script files run.
"use strict";
(() => {
  const fetched = async (address) => {
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(answer.statusText);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  };
  const failed = (place) => {
    place.removeAttribute("data-searching");
    place.append("The viewer does not answer. Check that nextlong view is still running.");
  };

  // Results that need more of the index are requested again. Until they are complete, only their progress is shown; rows that are there already stay.
  async function search(results) {
    results.setAttribute("aria-busy", "true");
    try {
      const page = await fetched(results.querySelector("a.continue").href);
      const next = document.adoptNode(page.getElementById("results"));
      const continues = next.dataset.searching !== undefined;
      if (!results.querySelector("#rows tr")) {
        results.replaceWith(next);
        if (continues) search(next);
        else for (const root of next.querySelectorAll(".sequence")) window.nextlong.explore(root);
        return;
      }
      results.querySelector(".count").replaceWith(next.querySelector(".count"));
      if (continues) { search(results); return; }
      results.querySelector("thead").replaceWith(next.querySelector("thead"));
      results.removeAttribute("data-searching");
      results.removeAttribute("aria-busy");
    } catch { failed(results); }
  }

  async function append(below) {
    try {
      const page = await fetched(below.querySelector("a").href);
      const rows = document.getElementById(below.dataset.into), first = rows.children.length;
      rows.append(...page.getElementById(below.dataset.into).children);
      const next = page.querySelector(".more") || document.createElement("p");
      const own = document.adoptNode(next);
      below.replaceWith(own);
      if (own.querySelector(".shown")) own.querySelector(".shown").textContent = rows.children.length.toLocaleString("en-US");
      if (below.dataset.searching === undefined) rows.children[first]?.querySelector("a, button")?.focus();
      begin(own);
      selectable();
    } catch { failed(below); }
  }

  function begin(below) {
    const link = below.querySelector("a");
    if (!link) return;
    link.addEventListener("click", (event) => { event.preventDefault(); append(below); });
    if (below.dataset.searching !== undefined) append(below);
  }

  // Rows of the table of chunks choose in the strip above, and show which chunk is chosen there.
  function selectable() {
    const root = document.querySelector(".sequence");
    for (const row of root ? document.querySelectorAll("tr[data-place]:not([data-ready])") : []) {
      row.dataset.ready = "yes";
      const place = row.querySelector(".place"), button = document.createElement("button");
      button.type = "button";
      button.setAttribute("aria-label", `Show chunk ${place.textContent} in the bar`);
      button.append(...place.childNodes);
      place.append(button);
      row.addEventListener("click", (event) => {
        if (event.target.closest("a")) return;
        root.sequence.choose(Number(row.dataset.place));
        root.scrollIntoView({ block: "nearest" });
      });
    }
  }

  function show(chosen) {
    for (const row of document.querySelectorAll("tr[data-place]")) row.classList.toggle("chosen", Number(row.dataset.place) === chosen);
  }
  document.addEventListener("chosen", (event) => show(event.detail));

  // In a static copy all rows are here: the page sorts and filters them itself.
  function local(form) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    const rows = document.getElementById("rows"), status = document.querySelector(".count");
    form.querySelector("input").addEventListener("input", (event) => {
      const words = event.target.value.toLowerCase().split(/\s+/);
      for (const row of rows.children) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
      status.textContent = `${[...rows.children].filter((row) => !row.hidden).length} sequences.`;
    });
    for (const head of document.querySelectorAll("thead th.number")) {
      const place = [...head.parentNode.children].indexOf(head), button = document.createElement("button");
      const name = head.firstChild.textContent.trim();
      button.type = "button";
      button.textContent = name;
      head.firstChild.replaceWith(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
        for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
        head.setAttribute("aria-sort", down > 0 ? "ascending" : "descending");
        const value = (row) => Number(row.children[place].dataset.value);
        rows.append(...[...rows.children].sort((a, b) => down * (value(a) - value(b))));
      });
    }
  }

  const results = document.querySelector("#results[data-searching]");
  if (results) search(results);
  for (const below of document.querySelectorAll(".more")) begin(below);
  for (const form of document.querySelectorAll("form.local")) local(form);
  selectable();
  show(document.querySelector(".sequence")?.sequence.chosen);
})();
