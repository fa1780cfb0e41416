/**
 * Shows code blocks with highlighting. highlight.js is imported for the first block that needs it. This module converts
 * the syntax tree of highlight.js to elements, and does not use the HTML of highlight.js.
 */

import { fill, h, icon } from "../dom.js"
import { fillLong } from "./long_text.js"

const NAMES = /** @type {Record<string, string>} */ ({
  sh: "bash", shell: "bash", zsh: "bash", console: "bash", "c++": "cpp", cs: "csharp", patch: "diff", golang: "go",
  toml: "ini", js: "javascript", jsx: "javascript", mjs: "javascript", kt: "kotlin", py: "python", rb: "ruby",
  rs: "rust", ts: "typescript", tsx: "typescript", html: "xml", svg: "xml", yml: "yaml", h: "c", hpp: "cpp",
})
const LANGUAGES = new Set(
  "bash c cpp csharp css diff go ini java javascript json kotlin php python ruby rust sql typescript xml yaml".split(" "),
)
const MAX_CODE = 30_000
const TASK_MS = 8

/** @type {Promise<any> | null} */
let core = null
/** @type {Map<string, Promise<void>>} */
const languages = new Map()

/**
 * @param {string} text
 * @param {string} language
 */
export function codeBlock(text, language) {
  const code = h("code", { dir: "ltr" })
  fillLong(code, text)
  const copy = h("button", { type: "button", class: "copy", "aria-label": "Copy the code", title: "Copy", onclick: () => void copyText(text, copy) }, icon("copy"))
  return h(
    "figure",
    { class: "code", "data-language": language || undefined },
    h("pre", { tabindex: 0, role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, code),
    copy,
  )
}

/**
 * @param {string} text
 * @param {HTMLElement} button
 */
async function copyText(text, button) {
  await navigator.clipboard?.writeText(text)
  button.classList.add("done")
  setTimeout(() => button.classList.remove("done"), 1500)
}

/** @type {{ code: HTMLElement, language: string }[]} */
const waiting = []
let isHighlighting = false

/** Highlight the code blocks below an element. @param {ParentNode} element */
export function highlightAll(element) {
  for (const figure of element.querySelectorAll("figure.code[data-language]:not([data-highlighted])")) {
    const code = figure.querySelector("code")
    const language = languageOf(figure.getAttribute("data-language") ?? "")
    figure.setAttribute("data-highlighted", "")
    if (code && language && (code.textContent ?? "").length <= MAX_CODE) waiting.push({ code, language })
  }
  if (!isHighlighting) void highlightWaiting()
}

/** Highlight the waiting code blocks one after another. After every `TASK_MS` milliseconds, let the browser draw. */
async function highlightWaiting() {
  isHighlighting = true
  let began = performance.now()
  for (let next; (next = waiting.shift()); ) {
    await highlight(next.code, next.language).catch(() => {}) // if highlight.js cannot be imported, the code stays plain
    if (performance.now() - began < TASK_MS) continue
    await new Promise((resolve) => setTimeout(resolve))
    began = performance.now()
  }
  isHighlighting = false
}

/** Return the name that highlight.js uses for a language; null if the language is unknown. @param {string} name */
function languageOf(name) {
  const lower = name.toLowerCase()
  const known = NAMES[lower] ?? lower
  return LANGUAGES.has(known) ? known : null
}

/**
 * @param {HTMLElement} code
 * @param {string} language
 */
async function highlight(code, language) {
  core ??= import("../vendor/highlight/core.js")
  const engine = (await core).default
  let loading = languages.get(language)
  if (!loading) {
    loading = import(`../vendor/highlight/languages/${language}.js`).then((module) => engine.registerLanguage(language, module.default))
    languages.set(language, loading)
  }
  await loading
  const result = engine.highlight(code.textContent ?? "", { language, ignoreIllegals: true })
  fill(code, scopes(result._emitter.rootNode))
}

/**
 * @param {any} node
 * @returns {(Node | string)[]}
 */
function scopes(node) {
  return node.children.map((/** @type {any} */ child) =>
    typeof child === "string" ? child : h("span", { class: child.scope ? `hl-${child.scope.split(".")[0]}` : undefined }, scopes(child)),
  )
}
