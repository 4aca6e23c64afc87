// The page "The dial": Vega draws each dial; its words go where they can be read aloud.
window.addEventListener("load", async () => {
  for (const dial of window.vegaEmbed ? document.querySelectorAll(".dial") : []) {
    const [turn, charts] = dial.querySelectorAll(".dial-turn, .dial-charts");
    const spec = JSON.parse(dial.querySelector("script").textContent);
    const plain = { actions: false, bind: turn, defaultStyle: false, hover: false, logLevel: 1, renderer: "svg" };
    const { view } = await window.vegaEmbed(charts, spec, plain);
    const output = dial.insertBefore(document.createElement("output"), charts);
    const tell = (name, [stop, words]) => {
      turn.querySelector("input").setAttribute("aria-valuetext", stop);
      turn.querySelector("input + span").textContent = stop; // the slider's own says its number
      output.textContent = words;
      charts.setAttribute("aria-label", words);
    };
    view.addSignalListener("told", tell);
    tell("told", view.signal("told"));
    const fit = () => view.signal("room", charts.clientWidth).resize().runAsync();
    new ResizeObserver(fit).observe(charts);
  }
});
