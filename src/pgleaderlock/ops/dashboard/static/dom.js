// The few verbs with which this page touches its document. Data only ever becomes text: nothing here parses markup.

export const byId = (id) => document.getElementById(id);

export function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Writing the same text again would still cost a layout, and would make a screen reader read it again.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function setHidden(node, isHidden) {
  if (node.hidden !== isHidden) node.hidden = isHidden;
}

export function setData(node, key, value) {
  if (node.dataset[key] !== value) node.dataset[key] = value;
}

// eslint-disable-next-line no-control-regex
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
const LONGEST = 300;

// Names come from outside. A character that would turn the line around or hide in it is shown by its number.
export function readable(name) {
  const text = String(name ?? "").replace(INVISIBLE, (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`);
  return text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text;
}

// For places that take plain text only (a title, an announcement), where no element can isolate a name's direction.
export const isolated = (name) => `\u2068${readable(name)}\u2069`;

export function makeName(className) {
  return make("bdi", className ? `name ${className}` : "name");
}

export function setName(node, name) {
  const text = readable(name);
  if (node.textContent === text) return;
  node.textContent = text;
  node.title = text;
}

// Brings a parent's children in line with the items: keeps those whose key stays, so that focus and scrolling do too.
export function reconcile(parent, items, keyOf, create, update) {
  const known = (parent.keyed ??= new Map());
  const wanted = new Set();
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    if (wanted.has(key)) continue;
    wanted.add(key);
    let node = known.get(key);
    if (!node) {
      node = create(item);
      known.set(key, node);
    }
    update(node, item);
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  for (const [key, node] of known) {
    if (wanted.has(key)) continue;
    node.remove();
    known.delete(key);
  }
}

// A choice of one among few, as a row of buttons of which the arrow keys choose.
export function makeChoice(host, choose) {
  host.addEventListener("click", (event) => {
    const button = event.target.closest("[role=radio]");
    if (button) choose(button.dataset.value);
  });
  host.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...host.children];
    const at = all.findIndex((each) => each.getAttribute("aria-checked") === "true");
    const to = all[(at + step + all.length) % all.length];
    choose(to.dataset.value);
    to.focus();
  });
  return (options, chosen) => {
    const create = ([value]) => {
      const button = make("button");
      button.type = "button";
      button.setAttribute("role", "radio");
      button.dataset.value = value;
      return button;
    };
    const update = (button, [value, label]) => {
      setText(button, label);
      const isChosen = String(value === chosen);
      if (button.getAttribute("aria-checked") !== isChosen) button.setAttribute("aria-checked", isChosen);
      button.tabIndex = value === chosen ? 0 : -1;
    };
    reconcile(host, options, ([value]) => value, create, update);
  };
}

// A list of terms and values that stays in place while its values change.
export function showFacts(host, facts) {
  const create = ([label]) => {
    const box = make("div");
    box.append(make("dt", "", label), make("dd"));
    box.lastChild.append(makeName());
    return box;
  };
  const update = (box, [, value, note, kind]) => {
    setName(box.lastChild.firstChild, value);
    if (note !== undefined) box.title = readable(note);
    setData(box, "kind", kind ?? "");
  };
  reconcile(host, facts.filter(([, value]) => value !== null && value !== undefined && value !== ""), ([label]) => label, create, update);
}
