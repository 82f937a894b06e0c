// Strips: pointing at a chunk says what it is, choosing it shows its text beside the text it belongs to.
// Every text enters the page as a text node; nothing here makes HTML of it.
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
      this.asked = 0;
      this.chosen = 0;
      this.ends = this.data.starts.slice(1).concat(this.data.tokens);
      this.outlines = ["partner", "here"].map((name) => this.svg.appendChild(this.outline(name)));
      root.querySelector(".walk").hidden = false;
      this.listen();
      if (root.dataset.opens !== "at once") return;
      const first = this.data.roles.indexOf("negative");
      this.choose(first >= 0 ? first : this.data.roles.findIndex((_, place) => this.data.partners[place] >= 0));
    }

    outline(name) {
      const path = document.createElementNS(SVG, "path");
      path.setAttribute("class", name);
      return path;
    }

    listen() {
      this.svg.addEventListener("pointermove", (event) => this.say(this.at(event)));
      this.svg.addEventListener("pointerleave", () => this.say(this.chosen));
      this.svg.addEventListener("click", (event) => this.choose(this.at(event)));
      this.slider.addEventListener("input", () => this.choose(Number(this.slider.value)));
      this.slider.addEventListener("focus", () => this.say(this.chosen));
      this.root.querySelector(".back").addEventListener("click", () => this.choose(this.chosen - 1));
      this.root.querySelector(".on").addEventListener("click", () => this.choose(this.chosen + 1));
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
      if (roles[place] === "negative") return `Negative beside meta-chunk ${groups[place] + 1}`;
      if (roles[place] === "document") return `Document ${groups[place] + 1}`;
      return { joint: "A line break between two chunks", bos: "Begin of the sequence", eos: "End of the sequence" }[roles[place]] || roles[place];
    }

    label(place) {
      const { starts, scores, roles } = this.data;
      const parts = [this.called(place)];
      if (this.source(place)) parts.push(this.source(place));
      if (scores[place] !== null && roles[place] !== "meta") parts.push(`cosine ${scores[place].toFixed(3)}`);
      const span = this.ends[place] - starts[place];
      parts.push(`tokens ${number.format(starts[place])} to ${number.format(this.ends[place])} (${number.format(span)})`);
      return parts.join(" · ");
    }

    say(place) {
      this.told.textContent = this.label(place);
      this.frame(this.outlines[1], place);
    }

    frame(path, place) {
      const there = place >= 0;
      const width = there ? this.ends[place] - this.data.starts[place] : 0;
      path.setAttribute("d", there ? `M${this.data.starts[place]} 44h${width}V102h-${width}z` : "");
    }

    async choose(wanted) {
      const place = Math.min(Math.max(wanted, 0), this.data.starts.length - 1);
      this.chosen = place;
      this.slider.value = String(place);
      this.slider.setAttribute("aria-valuetext", this.label(place));
      this.say(place);
      const partner = this.data.partners[place];
      this.frame(this.outlines[0], partner);
      if (!this.data.texts) return;
      const asked = ++this.asked;
      const texts = this.data.url ? await this.fetched(place) : this.own(place, partner);
      if (asked === this.asked) this.show(place, partner, texts);
    }

    own(place, partner) {
      const { texts, words } = this.data;
      return { text: texts[place], partner: partner < 0 ? null : texts[partner], words: words[place] };
    }

    async fetched(place) {
      try {
        const answer = await fetch(`${this.data.url}${place}`);
        if (answer.ok) return await answer.json();
      } catch { /* told below */ }
      return { text: "The viewer does not answer; is `nextlong view` still running?", partner: null, words: [] };
    }

    show(place, partner, texts) {
      const cards = [this.card(this.called(place), place, texts.text, texts.words)];
      if (partner >= 0 && texts.partner !== null) cards.push(this.card(this.beside(place, partner), partner, texts.partner, texts.words));
      this.pair.replaceChildren(...cards);
    }

    beside(place, partner) {
      const [role, gap] = [this.data.roles[place], this.data.starts[partner] - this.ends[place]];
      if (role === "negative") return `${this.called(partner)}: what a model must tell it from`;
      if (role === "document") return `${this.called(partner)}: what a model reads before it`;
      if (gap >= 0) return `${this.called(partner)}: once right behind it, now ${number.format(gap)} tokens further`;
      return `${this.called(partner)}: once right before it, now ${number.format(this.data.starts[place] - this.ends[partner])} tokens back`;
    }

    card(title, place, text, words) {
      const shortened = this.data.shortened && text.length >= this.data.shortened ? "…" : "";
      const body = node("p", "words", ...marked(text, words), shortened);
      body.tabIndex = 0;
      body.setAttribute("role", "group");
      body.setAttribute("aria-label", `Text of ${this.called(place)}`);
      const made = node("article", this.data.roles[place] === "meta" ? "is-own" : "is-other", node("h3", "", title));
      made.append(node("p", "from", this.label(place).split(" · ").slice(1).join(" · ")), body);
      return made;
    }
  }

  for (const root of document.querySelectorAll(".sequence")) new Sequence(root);
})();
