// The button next to a command copies it to the clipboard.
document.querySelectorAll("button.copy").forEach((button) => button.addEventListener("click", () => {
  const line = button.parentElement.querySelector("pre");
  const range = document.createRange();
  range.selectNodeContents(line);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}));
