// What iterlin_book.browser asks a page: each function returns a list of [selector, what is wrong],
// if not said otherwise.
window.iterlin = (() => {
  const ARTICLE = document.querySelector("article") ?? document.body;
  const NOT_PROSE = "pre, code, script, style, textarea, mjx-container, .math, .sig";
  const RAW_TEX = /\\[([]|\\[)\]]|\$[^\s$][^$]*\$|\$\$|\\(?:begin|frac|lambda|eta|tau|mathbf|text)\b/;
  const shown = (element) => element.getClientRects().length > 0;
  const excerpt = (text) => text.trim().replace(/\s+/g, " ").slice(0, 60);

  function name(element) {
    if (element.id) return `#${element.id}`;
    const own = [element.localName, ...element.classList].slice(0, 3).join(".");
    const parent = element.parentElement;
    return parent && parent !== document.body ? `${name(parent).split(" > ").at(-1)} > ${own}` : own;
  }

  // Folded parts opened, and the page coloured, at once: half-way of a transition colours are others.
  async function open(scheme) {
    const style = document.head.appendChild(document.createElement("style"));
    style.textContent = "*, ::before, ::after { animation: none !important; transition: none !important }";
    document.documentElement.dataset.theme = scheme;
    for (const details of document.querySelectorAll("details")) details.open = true;
    await new Promise((done) => requestIdleCallback(done, { timeout: 1000 }));
  }

  function formulas() {
    const failed = [...document.querySelectorAll("mjx-merror, merror, [data-mjx-error]")].map((e) => [
      name(e),
      `a formula fails: ${e.dataset.mjxError ?? excerpt(e.textContent)}`,
    ]);
    const left = [...document.querySelectorAll(".math")].filter(
      (e) => e.matches("span, div") && !e.querySelector("mjx-container") && !e.closest("mjx-container"),
    );
    const texts = document.createTreeWalker(ARTICLE, NodeFilter.SHOW_TEXT);
    for (let node; (node = texts.nextNode()); ) {
      const parent = node.parentElement;
      if (RAW_TEX.test(node.data) && !parent.closest(NOT_PROSE)) left.push(parent);
    }
    return [...failed, ...left.map((e) => [name(e), `TeX is left as it is: ${excerpt(e.textContent)}`])];
  }

  // What sticks out of the page, the innermost first; what scrolls by itself holds its contents.
  function sideways() {
    const root = document.documentElement;
    if (root.scrollWidth <= root.clientWidth) return [];
    const out = [...document.body.querySelectorAll("*")].filter((element) => {
      const { left, right } = element.getBoundingClientRect();
      const flows = getComputedStyle(element).overflowX === "visible" ? left + element.scrollWidth : 0;
      if (Math.max(right, flows) + scrollX <= root.clientWidth + 1) return false;
      if (!element.checkVisibility({ visibilityProperty: true })) return false;
      for (let e = element.parentElement; e && e !== document.body; e = e.parentElement) {
        if (getComputedStyle(e).overflowX !== "visible") return false;
      }
      return true;
    });
    const inner = out.filter((e) => !out.some((other) => other !== e && e.contains(other)));
    const what = `the page scrolls sideways, ${root.scrollWidth} in ${root.clientWidth} pixels`;
    return (inner.length ? inner.slice(0, 3) : [root]).map((e) => [name(e), what]);
  }

  // Of every shown text in a drawing: [selector, its size in CSS pixels].
  function drawn() {
    const texts = [...ARTICLE.querySelectorAll("svg text")].filter((e) => shown(e) && e.textContent.trim());
    return texts.map((text) => {
      const { a, b } = text.getScreenCTM();
      return [name(text), parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b)];
    });
  }

  // Of every figure in a file of its own: [selector, shown width / natural width].
  function scales() {
    const images = [...ARTICLE.querySelectorAll("img")].filter((e) => shown(e) && e.naturalWidth > 200);
    return images.map((image) => [name(image), image.clientWidth / image.naturalWidth]);
  }

  // One element for each way in which text looks: contrast depends on nothing else, and a page of
  // the reference has 20,000 elements of a hundred looks.
  function looks() {
    const backgrounds = new Map();
    function behind(element) {
      if (!element) return "";
      if (!backgrounds.has(element)) {
        const { backgroundColor, backgroundImage, opacity, position } = getComputedStyle(element);
        const own = `${backgroundColor}${backgroundImage}${opacity}${position}`;
        backgrounds.set(element, own + behind(element.parentElement));
      }
      return backgrounds.get(element);
    }
    const first = new Map();
    for (const element of document.body.querySelectorAll("*")) {
      const speaks = [...element.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
      if (!(speaks || element.matches("input, button, select")) || !shown(element)) continue;
      if (element.closest("mjx-container")) continue; // in the colour of the text around it
      const { color, fontSize, fontWeight, textShadow, visibility } = getComputedStyle(element);
      const kind = element.matches("p a") ? "link" : "text";
      const look = [kind, color, fontSize, fontWeight, textShadow, visibility, behind(element)];
      if (!first.has(look.join())) first.set(look.join(), element);
    }
    return [...first.values()];
  }

  // The rules of WCAG 2.1, A and AA, that what has words is called by them, and of the best
  // practices that tables have no empty headers and all of a page stands in a landmark. With
  // `coloursAlone`, the rules of colours.
  async function axe(coloursAlone) {
    const mark = "data-iterlin-look";
    for (const element of document.querySelectorAll(`[${mark}]`)) element.removeAttribute(mark);
    for (const element of looks()) element.setAttribute(mark, "");
    // No rule looks into a formula, and its hundreds of elements take half of the time.
    const formulas = [...document.querySelectorAll("mjx-container")].map((e) => [e, [...e.childNodes]]);
    for (const [element] of formulas) element.replaceChildren();
    window.axe.configure({ rules: [{ id: "color-contrast", selector: `[${mark}]` }] });
    const everything = {
      runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"],
      rules: {
        "label-content-name-mismatch": { enabled: true },
        "empty-table-header": { enabled: true },
        region: { enabled: true },
      },
    };
    const colours = { runOnly: { type: "rule", values: ["color-contrast", "link-in-text-block"] } };
    const rules = coloursAlone ? colours : everything;
    const settings = { ...rules, resultTypes: ["violations"], preload: false };
    const { violations } = await window.axe.run(settings);
    for (const [element, parts] of formulas) element.replaceChildren(...parts);
    return violations.flatMap((rule) =>
      rule.nodes.map((node) => {
        const why = [...node.any, ...node.all, ...node.none][0]?.message ?? rule.help;
        const where = node.target.flat().join(" ").replaceAll(`[${mark}=""]`, "");
        return [where, `${rule.id}: ${why}`];
      }),
    );
  }

  // What a reader sees of the page's state, as one text.
  const state = () =>
    ARTICLE.innerText + [...ARTICLE.querySelectorAll("output, svg text")].map((e) => e.textContent).join();

  return { name, open, formulas, sideways, drawn, scales, axe, state };
})();
