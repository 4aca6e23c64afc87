// What says something to the eye is to be called the same by those who speak to it (WCAG 2.5.3):
// the theme's labels leave the visible words out.
function nameByWords() {
  for (const summary of document.querySelectorAll("summary[aria-label]")) {
    summary.removeAttribute("aria-label");
  }
  for (const summary of document.querySelectorAll(".bd-sidenav li > details > summary")) {
    const page = summary.closest("li").querySelector("a").textContent.trim();
    summary.setAttribute("aria-label", `Pages below ${page}`);
  }
  for (const button of document.querySelectorAll("button[aria-label]")) {
    const label = button.getAttribute("aria-label");
    const words = button.textContent.trim().replace(/\s+/g, " ");
    if (words && !label.includes(words)) {
      button.setAttribute("aria-label", `${words} (${label})`);
    }
  }
  // All of a page stands in some landmark: the title and the search field do in this one.
  const side = document.querySelector("#pst-primary-sidebar");
  side?.setAttribute("role", "region");
  side?.setAttribute("aria-label", "Side bar");
  // An empty corner of a table is no header.
  for (const corner of document.querySelectorAll("th:empty, th:has(> p:empty:only-child)")) {
    corner.replaceWith(document.createElement("td"));
  }
  // Items of a list are called so, by a role that is not given up (docutils' is).
  for (const entry of document.querySelectorAll("[role=list] > [role=doc-biblioentry]")) {
    entry.setAttribute("role", "listitem");
  }
}

window.addEventListener("load", () => {
  nameByWords();
  // A button's icons, whose titles are words, may be drawn later.
  const drawn = new MutationObserver(nameByWords);
  for (const button of document.querySelectorAll("button[aria-label]")) {
    drawn.observe(button, { childList: true });
  }
});
