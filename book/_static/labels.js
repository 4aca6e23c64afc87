// What says something to the eye is to be called the same by those who speak to it (WCAG 2.5.3):
// the theme's labels leave the visible words out.
window.addEventListener("load", () => {
  for (const summary of document.querySelectorAll("summary[aria-label]")) {
    summary.removeAttribute("aria-label");
  }
  for (const button of document.querySelectorAll("button[aria-label]")) {
    const label = button.getAttribute("aria-label");
    const words = button.textContent.trim().replace(/\s+/g, " ");
    if (words && !label.includes(words)) {
      button.setAttribute("aria-label", `${words} (${label})`);
    }
  }
});
