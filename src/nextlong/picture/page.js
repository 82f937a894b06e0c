// Charts: values on hover, series on and off by their legend. Strips: hovering names a chunk, choosing it shows its text
// beside the text it belongs to. Every text enters the page as a text node; nothing here makes HTML of it.
"use strict";
(() => {
  const SOLO = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff";
  const WORD = new RegExp(`[${SOLO}]|(?:(?![${SOLO}])[\\p{L}\\p{N}])+`, "gu");
  const SVG = "http://www.w3.org/2000/svg";
  const number = new Intl.NumberFormat("en-US");

  const node = (tag, className, ...children) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    made.append(...children);
    return made;
  };

  const tip = node("div", "tip");
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);

  function showTip(event, text) {
    tip.textContent = text;
    tip.classList.toggle("shown", Boolean(text));
    const left = Math.min(event.pageX + 12, scrollX + document.documentElement.clientWidth - tip.offsetWidth - 4);
    tip.style.setProperty("left", `${Math.max(scrollX, left)}px`);
    tip.style.setProperty("top", `${event.pageY + 18}px`);
  }

  function bringToLife(chart) {
    for (const title of chart.querySelectorAll("title")) { // the browser's own tooltip is slow, and would show as well
      title.parentNode.dataset.tip = title.textContent;
      title.remove();
    }
    chart.addEventListener("pointermove", (event) => showTip(event, event.target.dataset.tip));
    chart.addEventListener("pointerleave", (event) => showTip(event, ""));
    for (const key of chart.querySelectorAll("[data-key]")) {
      const button = node("button", "", ...key.childNodes);
      button.type = "button";
      button.setAttribute("aria-pressed", "true");
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", String(shown));
        for (const mark of chart.querySelectorAll(`[data-series="${key.dataset.key}"]`)) mark.classList.toggle("off", !shown);
      });
      key.replaceChildren(button);
    }
  }

  function marked(text, words) {
    const wanted = new Set(words), parts = [];
    let at = 0;
    for (const found of text.matchAll(WORD)) {
      if (!wanted.has(found[0].toLowerCase())) continue;
      parts.push(text.slice(at, found.index), node("mark", "", found[0]));
      at = found.index + found[0].length;
    }
    parts.push(text.slice(at));
    return parts;
  }

  class Sequence {
    constructor(root) {
      this.root = root;
      this.data = JSON.parse(root.querySelector("script").textContent);
      this.svg = root.querySelector("svg");
      this.slider = root.querySelector("input");
      this.told = root.querySelector(".told");
      this.pair = root.querySelector(".pair");
      this.requests = 0;
      this.chosen = 0;
      this.ends = this.data.starts.slice(1).concat(this.data.tokens);
      this.outlines = ["partner", "here"].map((name) => this.svg.appendChild(this.outline(name)));
      root.querySelector(".walk").hidden = false;
      this.listen();
      if (Number(root.dataset.first) >= 0) this.choose(Number(root.dataset.first));
    }

    outline(name) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      return path;
    }

    listen() {
      this.svg.addEventListener("pointermove", (event) => showTip(event, this.label(this.at(event))));
      this.svg.addEventListener("pointerleave", (event) => showTip(event, ""));
      this.svg.addEventListener("click", (event) => this.choose(this.at(event)));
      this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
      this.root.querySelector(".back").addEventListener("click", () => this.choose(this.chosen - 1));
      this.root.querySelector(".next").addEventListener("click", () => this.choose(this.chosen + 1));
    }

    at(event) {
      const box = this.svg.getBoundingClientRect();
      const token = ((event.clientX - box.left) / box.width) * this.data.tokens;
      let low = 0, high = this.data.starts.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.data.starts[middle] <= token) low = middle; else high = middle - 1;
      }
      return low;
    }

    source(place) { return this.data.sources[this.data.source[place]]; }

    called(place) {
      const { roles, groups } = this.data;
      if (roles[place] === "meta") return `Meta-chunk ${groups[place] + 1}`;
      if (roles[place] === "negative") return `Negative of meta-chunk ${groups[place] + 1}`;
      if (roles[place] === "context") return `Context of document ${groups[place] + 1}`;
      if (roles[place] === "document") return `Document ${groups[place] + 1}`;
      return { task: "Task with a known answer", separator: "Separator between two chunks", bos: "Beginning-of-sequence token", eos: "End-of-sequence token" }[roles[place]] || roles[place];
    }

    label(place) {
      const { starts, scores, roles } = this.data;
      const parts = [this.called(place)];
      if (this.source(place)) parts.push(this.source(place));
      if (scores[place] !== null) parts.push(`cosine ${scores[place].toFixed(3)}`);
      const span = this.ends[place] - starts[place];
      parts.push(`tokens ${number.format(starts[place])} to ${number.format(this.ends[place])} (${number.format(span)})`);
      return parts.join(" · ");
    }

    frame(path, place) {
      const width = place >= 0 ? this.ends[place] - this.data.starts[place] : 0;
      path.setAttribute("d", place >= 0 ? `M${this.data.starts[place]} 44h${width}V102h-${width}z` : "");
    }

    async choose(number) {
      const place = Math.min(Math.max(number, 0), this.data.starts.length - 1);
      this.chosen = place;
      this.slider.value = String(place);
      this.slider.setAttribute("aria-valuetext", this.label(place));
      this.told.textContent = this.label(place);
      const partner = this.data.partners[place];
      this.frame(this.outlines[0], partner);
      this.frame(this.outlines[1], place);
      this.root.dispatchEvent(new CustomEvent("chosen", { bubbles: true, detail: place }));
      if (!this.data.texts) return;
      const request = ++this.requests;
      const texts = this.data.url ? await this.fetched(place) : this.own(place, partner);
      if (request === this.requests) this.show(place, partner, texts);
    }

    own(place, partner) {
      const { texts, words } = this.data;
      return { text: texts[place], partner: partner < 0 ? null : texts[partner], words: words[place] };
    }

    async fetched(place) {
      try {
        const answer = await fetch(this.data.url.replace("{place}", place));
        const found = await answer.json(); // of one place, or in a static copy of the whole sequence
        return found.texts ? { text: found.texts[place], partner: found.texts[this.data.partners[place]] ?? null, words: found.words[place] } : found;
      } catch { /* said below */ }
      return { text: "The viewer does not answer; is nextlong view still running?", partner: null, words: [] };
    }

    show(place, partner, texts) {
      const cards = [this.card(this.called(place), place, texts.text, texts.words)];
      if (partner >= 0 && texts.partner !== null) cards.push(this.card(this.beside(place, partner), partner, texts.partner, texts.words));
      this.pair.replaceChildren(...cards);
    }

    beside(place, partner) {
      const [role, gap] = [this.data.roles[place], this.data.starts[partner] - this.ends[place]];
      if (role === "negative") return `${this.called(partner)}: the meta-chunk that the negative resembles`;
      if (role === "context") return `${this.called(partner)}: the document that the context was chosen for`;
      if (role === "document") return `${this.called(partner)}: the document before it`;
      if (gap >= 0) return `${this.called(partner)}: followed it directly in the document, now ${number.format(gap)} tokens later`;
      return `${this.called(partner)}: preceded it directly in the document, now ${number.format(this.data.starts[place] - this.ends[partner])} tokens earlier`;
    }

    card(title, place, text, words) {
      const shortened = /[.!?:;)\]"'»”’。！？…]\s*$/u.test(text) ? "" : "…"; // a chunk may end inside a sentence
      const body = node("p", "words", ...marked(text, words), shortened);
      body.tabIndex = 0;
      body.setAttribute("role", "group");
      body.setAttribute("aria-label", `Text of ${this.called(place)}`);
      const made = node("article", this.data.roles[place] === "meta" ? "is-own" : "is-other", node("h3", "", title));
      made.append(node("p", "from", this.label(place).split(" · ").slice(1).join(" · ")), body);
      return made;
    }
  }

  for (const chart of document.querySelectorAll(".chart")) bringToLife(chart);
  window.nextlong = { explore: (root) => { root.sequence = new Sequence(root); } };
  for (const root of document.querySelectorAll(".sequence")) window.nextlong.explore(root);
  // A box that scrolls is a tab stop only while it holds more than it shows.
  const scrolls = new ResizeObserver((boxes) => {
    for (const { target } of boxes) {
      if (target.scrollWidth > target.clientWidth + 1) target.tabIndex = 0; else target.removeAttribute("tabindex");
    }
  });
  for (const box of document.querySelectorAll(".wide")) scrolls.observe(box);
  // The table of contents marks the section that is being read.
  const contents = new Map([...document.querySelectorAll("nav.contents a")].map((link) => [link.hash.slice(1), link]));
  const reading = new IntersectionObserver((seen) => {
    for (const one of seen) {
      if (!one.isIntersecting) continue;
      for (const [id, link] of contents) if (id === one.target.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of contents.keys()) reading.observe(document.getElementById(id));
})();
