// A notebook is to be kept, not to be shown as text in a new tab.
window.addEventListener("load", () => {
  for (const link of document.querySelectorAll("a.btn-download-source-button")) {
    link.setAttribute("download", "");
    link.removeAttribute("target");
  }
});
// How to cite is one click away on every page.
window.addEventListener("load", () => {
  const link = document.createElement("a");
  link.href = `${document.documentElement.dataset.content_root}index.html#cite`;
  link.className = "btn cite";
  link.textContent = "Cite";
  document.querySelector(".article-header-buttons")?.prepend(link);
});
