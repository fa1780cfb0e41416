/** Handles a link with a sign-in code or token if the browser that opens the link is already signed in. */

import { fill, h } from "../dom.js"
import { endSignIn, replaceSignIn } from "../protocol/sign_out.js"
import { visibleText } from "../text/visible.js"

/** @typedef {import("../protocol/sign_in.js").Account} Account */

/**
 * Ask the user whether the sign-in of the link replaces the current sign-in. End the sign-in that is not used, and return
 * the account of the sign-in that is used. The user must confirm, because any web page can contain a link with a sign-in
 * code or token.
 * @param {HTMLElement} root
 * @param {Account} current
 * @param {import("../protocol/sign_in.js").NewSignIn} offered
 */
export async function chooseSignIn(root, current, offered) {
  const { name, role, conversation_id } = offered.account
  const isSame = current.name === name && current.role === role && current.conversation_id === conversation_id
  if (!isSame && (await askToReplace(root, current, offered.account))) return replaceSignIn(offered)
  await endSignIn(offered.secret)
  return current
}

/**
 * Show a question instead of the page, and return whether the user wants to sign in with the account of the link.
 * @param {HTMLElement} root
 * @param {Account} current
 * @param {Account} offered
 * @returns {Promise<boolean>}
 */
function askToReplace(root, current, offered) {
  return new Promise((resolve) => {
    const stay = h("button", { type: "button", class: "button primary", onclick: () => resolve(false) }, `Stay signed in as ${name(current)}`)
    fill(
      root,
      h(
        "div",
        { class: "sign-in" },
        h("h1", null, "Sign in as another user?"),
        h("p", null, `This browser is signed in as ${description(current)}. The link that you opened signs in as ${description(offered)}.`),
        h("p", { class: "hint" }, "If you continue, the current sign-in ends in all tabs. Continue only if you trust the sender of the link."),
        h("div", { class: "row" }, stay, h("button", { type: "button", class: "button", onclick: () => resolve(true) }, `Sign in as ${name(offered)}`)),
      ),
    )
    stay.focus()
  })
}

/** @param {Account} account */
function name(account) {
  return visibleText(account.name)
}

/** @param {Account} account */
function description(account) {
  return `${name(account)} (${account.role}${account.conversation_id ? ", one conversation only" : ""})`
}
