/** Ends sign-ins. If the request to the server fails, a sign-in stays valid. */

import { KEY, keepSignIn } from "./sign_in.js"

/** Sign out in all tabs of this browser. @param {(problem: string) => void} failed */
export async function signOut(failed) {
  try {
    await endSignIn(localStorage.getItem(KEY) ?? "")
  } catch (error) {
    return failed(`You are still signed in. ${/** @type {Error} */ (error).message}`)
  }
  localStorage.removeItem(KEY)
  location.reload()
}

/**
 * End the current sign-in on the server, and use the sign-in `signIn` instead.
 * @param {import("./sign_in.js").NewSignIn} signIn
 */
export async function replaceSignIn(signIn) {
  await endSignIn(localStorage.getItem(KEY) ?? "")
  return keepSignIn(signIn)
}

/** End a sign-in on the server. @param {string} secret */
export async function endSignIn(secret) {
  const response = await fetch("./sign-in", { method: "DELETE", headers: { "Parley-Page-Secret": secret } })
  if (!response.ok && response.status !== 401) throw new Error(`The server answered ${response.status}.`)
}
