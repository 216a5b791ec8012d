// One colour per node, the same everywhere on the page for as long as it is open. No reds: red is for a role without a leader.

const HUES = [258, 72, 310, 160, 345, 215, 115, 285, 185, 90];

const numbers = new Map();
let isDark = false;

export function meet(names) {
  const unknown = [...new Set(names)].filter((name) => !numbers.has(name)).sort();
  for (const name of unknown) numbers.set(name, numbers.size);
}

export function colourOf(name) {
  if (!numbers.has(name)) meet([name]);
  const number = numbers.get(name);
  const round = Math.floor(number / HUES.length);
  // Beyond the first ten the hues come again, shifted and of another strength.
  const shifted = (HUES[number % HUES.length] + round * 13) % 360;
  const hue = shifted < 42 ? shifted + 42 : shifted;
  // Yellows are browns when they are as dark as a blue may be.
  const lift = hue > 55 && hue < 125 ? 0.1 : 0;
  const light = (isDark ? 0.74 : 0.6 + lift) - 0.06 * (round % 3);
  return `oklch(${light} ${round % 2 ? 0.1 : 0.15} ${hue})`;
}

export function setDark(value) {
  isDark = value;
}
