// The page "The dial": Vega draws each dial; its words go where they can be read aloud.
window.addEventListener("load", async () => {
  for (const dial of window.vegaEmbed ? document.querySelectorAll(".dial") : []) {
    const [turn, charts] = dial.querySelectorAll(".dial-turn, .dial-charts");
    const spec = JSON.parse(dial.querySelector("script").textContent);
    const plain = { actions: false, bind: turn, defaultStyle: false, hover: false, logLevel: 1, renderer: "svg" };
    const { view } = await window.vegaEmbed(charts, spec, plain);
    const output = dial.insertBefore(document.createElement("output"), charts);
    const input = turn.querySelector("input");
    const tell = (name, [stop, words]) => {
      input.setAttribute("aria-valuetext", stop);
      turn.querySelector("input + span").textContent = stop; // the slider's own says its number
      output.textContent = words;
      charts.setAttribute("aria-label", words);
    };
    view.addSignalListener("told", tell);
    tell("told", view.signal("told"));
    const fit = () => view.signal("room", charts.clientWidth).resize().runAsync();
    new ResizeObserver(fit).observe(charts);
    if (!matchMedia("(prefers-reduced-motion: reduce)").matches) addPlay(turn, input, view, output);
  }
});

// A button that turns a dial from stop to stop, from the start if it stands at its end.
function addPlay(turn, input, view, output) {
  const button = turn.appendChild(document.createElement("button"));
  button.className = "sd-btn sd-btn-outline-primary";
  const last = Number(input.max);
  let timer;
  const stop = () => {
    timer = clearInterval(timer);
    button.textContent = "Play";
    output.removeAttribute("aria-live");
  };
  const step = () => {
    const next = view.signal("stop") + 1;
    if (next > last) return stop();
    view.signal("stop", next).run();
  };
  button.addEventListener("click", () => {
    if (timer) return stop();
    output.setAttribute("aria-live", "off"); // not every stop is to be read aloud
    button.textContent = "Pause";
    if (view.signal("stop") >= last) view.signal("stop", 0).run();
    timer = setInterval(step, 700);
  });
  stop();
}
