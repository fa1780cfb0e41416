/**
 * The sign-in of the page. The server exchanges a one-time sign-in code or a token for a cookie and a secret. The browser
 * sends the cookie, and the page sends the secret in a header. The page removes the code or token from its URL.
 */

/**
 * @typedef {{ name: string, role: "observer" | "driver" | "approver" | "admin", conversation_id: string | null,
 *   version: string, build: string, push_key: string | null }} Account
 * @typedef {{ code: string } | { token: string }} Credential
 * @typedef {{ account: Account, secret: string }} NewSignIn
 */

/** Matches a URL fragment that contains a sign-in code or a token. */
export const CREDENTIAL = /#(code|token)=(.+)$/
export const KEY = `parley.secret:${new URL("./", location.href).pathname}`

/** Return the headers that authenticate a request of the page. */
export function credentials() {
  const secret = localStorage.getItem(KEY)
  /** @type {Record<string, string>} */
  const headers = secret ? { "Parley-Page-Secret": secret } : {}
  return headers
}

/** Remove the sign-in code or token from the URL of the page, and return it. Throw an error if it cannot be decoded. */
export function takeCredentialFromAddress() {
  const { hash } = location
  if (CREDENTIAL.test(hash)) history.replaceState(null, "", location.pathname + location.search)
  return credentialIn(hash)
}

/**
 * Return the sign-in code or token in the fragment of a URL; null if the URL contains none. Throw an error if it cannot be
 * decoded.
 * @param {string} address
 * @returns {Credential | null}
 */
export function credentialIn(address) {
  const found = CREDENTIAL.exec(address)
  if (!found) return null
  try {
    const value = decodeURIComponent(found[2])
    return found[1] === "code" ? { code: value } : { token: value }
  } catch {
    throw new Error(`The address contains no valid ${found[1]}.`)
  }
}

/**
 * Create a sign-in on the server. The page uses the new sign-in only after a call of `keepSignIn`.
 * @param {Credential} credential
 * @returns {Promise<NewSignIn>}
 */
export async function beginSignIn(credential) {
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
  return { account, secret }
}

/** Use a sign-in in all tabs of this browser, and return its account. @param {NewSignIn} signIn */
export function keepSignIn({ account, secret }) {
  localStorage.setItem(KEY, secret)
  return account
}

/**
 * Return the account that is signed in; null if no account is signed in.
 * @returns {Promise<Account | null>}
 */
export async function currentAccount() {
  const response = await fetch("./sign-in", { headers: credentials(), cache: "no-store" })
  if (response.status === 401) return null
  if (!response.ok) throw new Error(`The server answered ${response.status}.`)
  return response.json()
}
