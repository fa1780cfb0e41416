/**
 * Creates DOM nodes. Text always becomes a text node and is never parsed as HTML.
 */

/** @typedef {Node | string | number | null | undefined | false} Child */

/**
 * Create an element. A property whose name begins with `on` is an event listener. `value`, `checked` and `selected` are
 * properties of the element. All other properties are attributes: `true` sets an empty attribute, and `false` sets no
 * attribute.
 *
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Record<string, any> | null} [properties]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, properties, ...children) {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value)
    else if (name === "value" || name === "checked" || name === "selected") /** @type {any} */ (element)[name] = value
    else element.setAttribute(name, value === true ? "" : String(value))
  }
  add(element, children)
  return element
}

/**
 * Append children. A list of children whose length is not limited is passed as an array: too many arguments are an error.
 * @param {Node} parent
 * @param {(Child | Child[])[]} children
 */
export function add(parent, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(parent, child)
    else if (child !== null && child !== undefined && child !== false) parent.appendChild(child instanceof Node ? child : document.createTextNode(String(child)))
  }
}

/**
 * Replace the children of an element.
 * @param {Element} element
 * @param {...(Child | Child[])} children
 */
export function fill(element, ...children) {
  const fragment = document.createDocumentFragment()
  add(fragment, children)
  element.replaceChildren(fragment)
}

/**
 * Make `nodes` the children of an element. Children that stay in order are not moved, so that they keep the focus. Return
 * whether the children have changed.
 * @param {Element} element
 * @param {Node[]} nodes
 */
export function arrange(element, nodes) {
  const before = [...element.childNodes]
  for (const child of before) if (!nodes.includes(child)) child.remove()
  nodes.forEach((node, index) => {
    if (element.childNodes[index] !== node) element.insertBefore(node, element.childNodes[index] ?? null)
  })
  return before.length !== nodes.length || before.some((child, index) => child !== nodes[index])
}

/** Return whether an element receives the letters that the user types. @param {EventTarget | null} element */
export function isTextField(element) {
  return element instanceof HTMLElement && (/^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName) || element.isContentEditable)
}

const PATHS = {
  send: "M4 12l16-8-5 16-3-7-8-1z",
  stop: "M7 7h10v10H7z",
  plus: "M12 5v14M5 12h14",
  back: "M15 5l-7 7 7 7",
  clip: "M8 12l6-6a3 3 0 014 4l-8 8a5 5 0 01-7-7l7-7",
  more: "M5 12h.01M12 12h.01M19 12h.01",
  search: "M11 5a6 6 0 100 12 6 6 0 000-12zM15.5 15.5L20 20",
  down: "M12 5v14M6 13l6 6 6-6",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 12.5l5 5 9-11",
  edit: "M5 19l1-4L16 5l3 3L9 18l-4 1z",
  up: "M12 19V5M6 11l6-6 6 6",
  chevron: "M9 6l6 6-6 6",
  bell: "M6 17h12l-1.500-2v-4a4.500 4.500 0 00-9 0v4L6 17zM10.500 20h3",
  gear: "M5 7h9M18 7h1M5 17h1M10 17h9M16 5v4M8 15v4",
  copy: "M9 9h10v10H9zM5 15V5h10",
  keys: "M4 7h16v10H4zM8 14h8M7 10.500h.01M11 10.500h.01M15 10.500h.01",
}

/**
 * Create an icon that screen readers ignore.
 * @param {keyof typeof PATHS} name
 */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg")
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }))
    svg.setAttribute(key, value)
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path")
  path.setAttribute("d", PATHS[name])
  svg.appendChild(path)
  return svg
}

/**
 * Create a button that shows an icon. `label` is the tooltip, and the name of the button for screen readers.
 * @param {keyof typeof PATHS} name
 * @param {string} label
 * @param {(event: Event) => void} run
 * @param {Record<string, any>} [more]
 */
export function iconButton(name, label, run, more = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick: run, ...more }, icon(name))
}

/** Return a new UUID. Unlike `crypto.randomUUID`, this function works without a secure context. */
export function uuid() {
  const bytes = crypto.getRandomValues(new Uint8Array(16))
  bytes[6] = (bytes[6] & 0x0f) | 0x40
  bytes[8] = (bytes[8] & 0x3f) | 0x80
  const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20)].join("-")
}
