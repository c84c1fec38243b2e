const source = new EventSource("events" + location.search);
function show(state, detail) {
  document.getElementById("state").textContent = state + (detail || "");
  document.title = "spark-ssp: " + state;
}
source.onmessage = event => {
  const open = [...document.querySelectorAll("details")].map(each => each.open);
  const left = [...document.querySelectorAll(".frame")].map(each => each.scrollLeft);
  document.querySelector("main").innerHTML = JSON.parse(event.data);
  document.querySelectorAll("details").forEach((each, n) => { each.open = open[n]; });
  document.querySelectorAll(".frame").forEach((each, n) => { each.scrollLeft = left[n] || 0; });
  show("live");
};
source.onerror = () => { show("disconnected", ": the program has ended, or restarts"); };
