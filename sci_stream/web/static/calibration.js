// The page of sci-stream calibrate: the newest frame and its figures, again and again.

async function next() {
  const query = location.search;
  try {
    const status = await (await fetch("status" + query)).json();
    document.getElementById("step").textContent = status.step;
    document.getElementById("figures").replaceChildren(...Object.entries(status.figures).map((cells) => {
      const row = document.createElement("tr");
      for (const text of cells) row.appendChild(document.createElement("td")).textContent = text;
      return row;
    }));
    document.getElementById("frame").src = "frame.jpg" + (query || "?") + "&" + Date.now();
  } catch { document.getElementById("step").textContent = "finished"; }
  setTimeout(next, 300);
}
next();
