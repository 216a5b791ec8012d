// Loaded before the first paint and not as a module, so that nobody who chose dark is shown a flash of light.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("pgleaderlock.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that forbids storage still has a preference of its own.
  }
})();
