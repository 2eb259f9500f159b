// The pages work without this script, apart from the buttons that copy.
document.addEventListener("click", async (event) => {
  const button = event.target.closest("button[data-copy]");
  if (!button) {
    return;
  }
  const said = document.getElementById("said");
  try {
    await navigator.clipboard.writeText(button.dataset.copy);
    said.textContent = "Copied " + button.dataset.copy;
  } catch (error) {
    said.textContent = "Not copied: " + error.message;
  }
});

document.addEventListener("keydown", (event) => {
  const search = document.querySelector("input[type=search]");
  const typing = event.target.matches("input, select, textarea");
  if (event.key === "/" && search && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
    search.select();
  }
});
