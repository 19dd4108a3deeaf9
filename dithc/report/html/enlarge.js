// Enlarge images: Enter or a click opens an image, arrow keys show its neighbors, Escape closes it. Open collapsed parts for printing.
"use strict";
const large = document.getElementById("large");
const buttons = [...document.querySelectorAll("button.enlarge")];
let at = 0;
function show(number) {
  at = (number + buttons.length) % buttons.length;
  const small = buttons[at].querySelector("img");
  const picture = new Image();
  picture.alt = small.alt;
  picture.src = small.currentSrc;
  const scale = Math.min(innerWidth * 0.94 / small.naturalWidth, innerHeight * 0.8 / small.naturalHeight);
  const factor = scale >= 1 ? Math.floor(scale) : scale;
  picture.width = Math.round(small.naturalWidth * factor);
  if (factor >= 2) picture.className = "crisp";
  large.querySelector("figure").replaceChildren(picture);
  large.querySelector("p").textContent = buttons[at].dataset.title;
  if (!large.open) large.showModal();
}
buttons.forEach((button, number) => button.addEventListener("click", () => show(number)));
large.addEventListener("click", () => large.close());
large.addEventListener("close", () => buttons[at].focus());
large.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) show(at + step);
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
