/** The form that asks for a sign-in code or a token when the page is not signed in. */

import { h } from "../dom.js"
import { beginSignIn, credentialIn, keepSignIn } from "../protocol/sign_in.js"

/**
 * @param {string} problem the reason why the form is shown again; empty when the form is shown for the first time
 * @param {(account: import("../protocol/sign_in.js").Account) => void} done
 */
export function signInForm(problem, done) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, "aria-label": "Code or token", placeholder: "Code or token" })
  const message = h("p", { class: "problem", role: "alert", hidden: !problem }, problem)
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault()
    const value = input.value.trim()
    try {
      const pasted = credentialIn(value)
      done(keepSignIn(await (pasted ? beginSignIn(pasted) : beginSignIn({ code: value }).catch(() => beginSignIn({ token: value })))))
    } catch (error) {
      message.textContent = /** @type {Error} */ (error).message
      message.hidden = false
    }
  }
  return h(
    "div",
    { class: "sign-in" },
    h("h1", null, "Parley"),
    h("p", null, "Sign in with a one-time code. ", h("code", null, "parley serve --sign-in"), " prints a new URL with a code. You can also enter the whole URL or a token."),
    h("form", { onsubmit: submit }, input, h("button", { type: "submit", class: "button primary" }, "Sign in")),
    message,
  )
}
