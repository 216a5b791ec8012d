// Loaded before the first paint and not as a module, so that a reader who chose dark sees no flash of light.
"use strict";
(() => {
  try {
    const chosen = localStorage.getItem("pgleaderlock.theme");
    if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that forbids storage still has a preference of its own.
  }
})();
