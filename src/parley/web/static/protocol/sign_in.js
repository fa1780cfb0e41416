/**
 * The sign-in of the page: a one-time code or a token becomes a cookie and a secret. The browser sends the cookie,
 * and the page sends the secret as a header. Neither code nor token stays in the address.
 */

/**
 * @typedef {{ name: string, role: "observer" | "driver" | "approver" | "admin", conversation_id: string | null,
 *   version: string, build: string, push_key: string | null }} Account
 */

const KEY = `parley.secret:${new URL("./", location.href).pathname}`

/** Return the headers that prove the sign-in. */
export function credentials() {
  const secret = localStorage.getItem(KEY)
  /** @type {Record<string, string>} */
  const headers = secret ? { "Parley-Page-Secret": secret } : {}
  return headers
}

/**
 * Remove a code or token from the address and return it.
 * @returns {{ code: string } | { token: string } | null}
 */
export function takeCredentialFromAddress() {
  const found = /^#(code|token)=(.+)$/.exec(location.hash)
  if (!found) return null
  history.replaceState(null, "", location.pathname + location.search)
  const value = decodeURIComponent(found[2])
  return found[1] === "code" ? { code: value } : { token: value }
}

/**
 * @param {{ code: string } | { token: string }} credential
 * @returns {Promise<Account>}
 */
export async function signIn(credential) {
  const response = await fetch("./sign-in", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(credential),
  })
  if (!response.ok) {
    const body = await response.json().catch(() => null)
    throw new Error(body?.error?.message ?? `The server answered ${response.status}.`)
  }
  const { secret, ...account } = await response.json()
  localStorage.setItem(KEY, secret)
  return account
}

/**
 * Return the account that is signed in; null if there is none.
 * @returns {Promise<Account | null>}
 */
export async function currentAccount() {
  const response = await fetch("./sign-in", { headers: credentials(), cache: "no-store" })
  if (response.status === 401) return null
  if (!response.ok) throw new Error(`The server answered ${response.status}.`)
  return response.json()
}

export async function signOut() {
  await fetch("./sign-in", { method: "DELETE", headers: credentials() }).catch(() => {})
  localStorage.removeItem(KEY)
}
