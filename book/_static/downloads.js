// A notebook is to be kept, not to be shown as text in a new tab.
window.addEventListener("load", () => {
  for (const link of document.querySelectorAll("a.btn-download-source-button")) {
    link.setAttribute("download", "");
    link.removeAttribute("target");
  }
});
