// The page "The dial": its controls say which of the recorded runs each chart shows, in which
// colour, and in what words. Everything shown is in the page; Vega draws.
window.addEventListener("load", async () => {
  const dial = document.querySelector(".dial");
  if (!dial || !window.vegaEmbed) {
    return;
  }
  const told = JSON.parse(dial.querySelector(".dial-told").textContent);
  const stop = dial.querySelector("#dial-stop");
  const choices = [...dial.querySelectorAll("select")];
  for (const part of dial.querySelectorAll("[hidden]")) {
    part.hidden = false;
  }

  const plain = { actions: false, defaultStyle: false, hover: false, renderer: "svg" };
  const embed = async (view) => {
    const figure = dial.querySelector(`#dial-${view.name}`);
    const container = figure.querySelector(".dial-chart");
    const chart = (await window.vegaEmbed(container, view.chart, plain)).view;
    return { ...view, chart, container, words: figure.querySelector(".dial-words") };
  };
  const views = await Promise.all(told.views.map(embed));

  // Of the track that the choices name, what the record has nearest to the dial.
  const turn = () => {
    const place = told.places[stop.value];
    const axis = choices.find((choice) => choice.name === "axis");
    const where = place.said[axis ? axis.value : "period"];
    const briefs = [];
    dial.style.setProperty("--dial-light", place.light);
    dial.style.setProperty("--dial-dark", place.dark);
    stop.setAttribute("aria-valuetext", where);
    dial.querySelector(".dial-value").textContent = where;
    for (const { chart, container, controls, title, tracks, words } of views) {
      const chosen = controls.map((name) => choices.find((choice) => choice.name === name).value);
      const name = chosen.join("|");
      const track = tracks[name];
      const at = track.at[stop.value];
      const said = (track.exact[stop.value] ? "" : "Nearest on record, ") + track.words[at];
      words.textContent = said;
      container.setAttribute("aria-label", `${title}. ${said}`);
      if (track.briefs[at]) {
        briefs.push(track.briefs[at]);
      }
      chart.signal("track", name).signal("at", at).runAsync();
    }
    dial.querySelector("output").textContent = briefs.join(" · ");
  };
  stop.addEventListener("input", turn);
  for (const choice of choices) {
    choice.addEventListener("change", turn);
  }
  turn();
});
