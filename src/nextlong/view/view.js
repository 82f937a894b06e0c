// View: further rows come into the page as they are asked for; a search goes on by itself until a page is full.
// What the server sends was escaped there; the pages' policy lets no script but these two files run.
"use strict";
(() => {
  const failed = (below) => {
    below.removeAttribute("data-searching");
    below.replaceChildren("The viewer does not answer; is `nextlong view` still running?");
  };

  async function asked(below) {
    const link = new URL(below.querySelector("a").href);
    link.searchParams.set("part", "1");
    const answer = await fetch(link);
    if (!answer.ok) throw new Error(answer.statusText);
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  async function goOn(below) {
    below.setAttribute("aria-busy", "true");
    try {
      const found = await asked(below);
      if (below.dataset.into === "self") return begin(replaced(below.closest("section"), found.querySelector("section")));
      const rows = document.getElementById(below.dataset.into);
      const wanted = found.getElementById(below.dataset.into) || found.querySelector("tbody");
      const first = rows.children.length;
      rows.append(...wanted.children);
      const made = replaced(below, [...found.querySelectorAll(".more")].at(-1));
      if (!below.dataset.searching) rows.children[first]?.querySelector("a")?.focus();
      begin(made);
    } catch { failed(below); }
  }

  function replaced(old, made) {
    const own = document.adoptNode(made);
    old.replaceWith(own);
    return own;
  }

  function begin(root) {
    const all = root.matches(".more") ? [root] : [...root.querySelectorAll(".more")];
    for (const below of all.filter((own) => own.querySelector("a"))) {
      below.querySelector("a").addEventListener("click", (event) => { event.preventDefault(); goOn(below); });
      if (below.dataset.searching) goOn(below);
    }
  }

  begin(document.body);
})();
