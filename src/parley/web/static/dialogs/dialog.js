/** Opens modal dialogs. A dialog is removed from the page when it is closed. */

import { h } from "../dom.js"

/**
 * @param {string} title
 * @param {(close: () => void) => (Node | null | false)[]} content
 * @param {{ class?: string }} [options]
 */
export function openDialog(title, content, options = {}) {
  const dialog = h("dialog", { class: options.class, "aria-labelledby": "dialog-title" })
  const close = () => dialog.close()
  dialog.append(h("h2", { id: "dialog-title" }, title), ...content(close).filter((node) => node instanceof Node))
  dialog.addEventListener("close", () => dialog.remove())
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) close()
  })
  document.body.append(dialog)
  dialog.showModal()
  return dialog
}

/**
 * Open a dialog that asks for text if `label` is given; otherwise the dialog asks for a confirmation. `run` is called with
 * the entered text. If `run` fails, the dialog shows the error and stays open.
 * @param {{ title: string, label?: string, value?: string, text?: string, button: string, danger?: boolean,
 *   run: (text: string) => Promise<void> }} options
 */
export function ask({ title, label, value = "", text, button, danger = false, run }) {
  const input = h("input", { type: "text", maxlength: 1000, value, "aria-label": label ?? title })
  const problem = h("p", { class: "problem", role: "alert", hidden: true })
  openDialog(title, (close) => {
    const submit = async (/** @type {Event} */ event) => {
      event.preventDefault()
      try {
        await run(input.value)
        close()
      } catch (error) {
        problem.textContent = /** @type {Error} */ (error).message
        problem.hidden = false
      }
    }
    return [
      h(
        "form",
        { onsubmit: submit },
        text && h("p", null, text),
        label && input,
        problem,
        h(
          "div",
          { class: "row end" },
          h("button", { type: "button", class: "button quiet", onclick: close }, "Cancel"),
          h("button", { type: "submit", class: danger ? "button danger" : "button primary" }, button),
        ),
      ),
    ]
  })
  if (label) input.select()
}
