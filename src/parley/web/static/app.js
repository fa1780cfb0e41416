/** Signs in, connects to the server, and shows the list of conversations and the open conversation. */

import { fill, h, iconButton } from "./dom.js"
import { ListView } from "./list/list.js"
import { Connection } from "./protocol/connection.js"
import { CREDENTIAL, KEY, beginSignIn, credentials, currentAccount, keepSignIn, takeCredentialFromAddress } from "./protocol/sign_in.js"
import { announce } from "./shell/announce.js"
import { connectionBar } from "./shell/connection_bar.js"
import { Notifications } from "./shell/notifications.js"
import { Screen } from "./shell/screen.js"
import { installShortcuts } from "./shell/shortcuts.js"
import { ConversationList } from "./state/list.js"

/** @typedef {import("./protocol/sign_in.js").Account} Account */

const root = /** @type {HTMLElement} */ (document.getElementById("app"))

/** Sign in with the code or token in the URL, continue the current sign-in, or show the sign-in form. */
function main() {
  addEventListener("hashchange", () => CREDENTIAL.test(location.hash) && location.reload())
  addEventListener("storage", ({ key, oldValue, newValue }) => key === KEY && oldValue && newValue && location.reload())
  try {
    void begin(takeCredentialFromAddress())
  } catch (error) {
    void begin(null, /** @type {Error} */ (error).message)
  }
}

/** @param {import("./protocol/sign_in.js").Credential | null} credential @param {string} [problem] */
async function begin(credential, problem = "") {
  /** @type {Account | null} */
  let account = null
  try {
    account = await currentAccount()
  } catch {
    fill(root, h("div", { class: "sign-in" }, h("h1", null, "Parley"), h("p", { role: "alert" }, "The server cannot be reached. Trying again…")))
    setTimeout(() => void begin(credential, problem), 2000)
    return
  }
  try {
    if (credential) {
      const signIn = await beginSignIn(credential)
      account = account ? await (await import("./shell/replace_sign_in.js")).chooseSignIn(root, account, signIn) : keepSignIn(signIn)
    }
  } catch (error) {
    problem = /** @type {Error} */ (error).message
  }
  if (!account) return showSignIn(problem, start)
  start(account)
  if (problem) announceVisibly(problem)
}

/** @param {string} problem @param {(account: Account) => void} done */
async function showSignIn(problem, done) {
  const { signInForm } = await import("./shell/sign_in_form.js")
  fill(root, signInForm(problem, done))
}

/** @param {Account} account */
function start(account) {
  const connection = new Connection()
  const list = new ConversationList(connection)
  /** @type {Screen | null} */
  let screen = null

  /** @type {import("./transcript/approval.js").Answer} */
  const answer = async (approval, decision, reason) => {
    await connection.call("approvalAnswer", { approval_id: approval.approval_id, decision, ...(reason ? { reason } : {}) })
    announce(decision.startsWith("approved") ? "Approved." : "Denied.")
    void list.refresh()
  }
  /** @param {string} id @param {number} [seq] */
  const open = (id, seq) => {
    location.hash = seq ? `c=${id}&seq=${seq}` : `c=${id}`
  }
  const close = () => {
    if (account.conversation_id) return
    location.hash = ""
  }
  const changed = () => {
    connection.tellTabs("list")
    void list.refresh()
  }
  let isOpening = false // true while the dialog for a new conversation is being loaded
  const create = () => {
    if (!connection.may("conversationCreate") || isOpening || document.querySelector("dialog[open]")) return
    isOpening = true
    void import("./dialogs/new_conversation.js")
      .then(({ newConversation }) => newConversation(connection, list, created))
      .catch((error) => announceVisibly(error.message))
      .finally(() => (isOpening = false))
  }
  /** @param {string} id @param {string} message */
  const created = (id, message) => {
    open(id)
    show() // does not wait for the `hashchange` event, so that the next typed character becomes part of the message
    screen?.composer.focus()
    if (message) screen?.composer.sendText(message)
    changed()
  }
  /** @param {string} id @param {string} title */
  const rename = async (id, title) => (await import("./dialogs/conversation.js")).rename(connection, id, title, changed)
  /** @param {string} id @param {string} title */
  const remove = async (id, title) => (await import("./dialogs/conversation.js")).remove(connection, id, title, () => (close(), changed()))

  const listView = new ListView(list, connection, { open, create, answer })
  const place = h("div", { class: "place" })
  const bell = iconButton("bell", "Notify me", async () => {
    const { enableNotifications } = await import("./shell/push.js")
    announceVisibly(await enableNotifications(account.push_key, credentials()))
  })
  const head = h(
    "header",
    { class: "app-head" },
    h("h1", { class: "brand" }, "Parley"),
    connectionBar(connection),
    h("span", { class: "spring" }),
    "Notification" in globalThis && bell,
    iconButton("keys", "Keys", () => void showKeys()),
    h("button", { type: "button", class: "button quiet small", onclick: async () => (await import("./protocol/sign_out.js")).signOut(announceVisibly) }, "Sign out"),
  )
  const side = h("div", { class: "side" }, head, listView.node)
  const welcome = h("div", { class: "welcome" }, h("p", null, "Choose a conversation, or start a new one."), h("p", { class: "hint" }, h("kbd", null, "n"), " new  ", h("kbd", null, "/"), " search  ", h("kbd", null, "?"), " all keys"))
  const main = h("div", { class: "main" }, place)
  fill(root, side, main)
  root.dataset.bound = String(account.conversation_id !== null)

  const show = () => {
    const found = /^#c=([0-9a-f-]{36})(?:&seq=(\d+))?$/.exec(location.hash)
    const id = account.conversation_id ?? found?.[1] ?? null
    if (screen?.id !== id) {
      screen?.close()
      screen = id ? new Screen(id, connection, list, { me: account.name, isShared: account.conversation_id !== null, answer, open, close, rename, remove, changed }) : null
      fill(place, screen ? screen.node : welcome)
      root.dataset.view = id ? "conversation" : "list"
      listView.setCurrent(id)
    }
    if (found?.[2]) void screen?.showPosition(Number(found[2]))
  }
  addEventListener("hashchange", show)
  navigator.serviceWorker?.addEventListener("message", (event) => event.data?.open && open(event.data.open))
  new Notifications(list, { open, leads: () => connection.tabs.leads })
  installShortcuts({ screen: () => screen, list: listView, isBusy: () => isOpening, create, close, showKeys: () => void showKeys() })
  connection.addEventListener("session", () => screen?.update())
  connection.addEventListener("state", () => {
    if (connection.state === "signed-out") void showSignIn("You are signed out.", () => location.reload())
  })
  connection.addEventListener("live", () => void checkBuild(account))
  show()
  connection.start()
}

/** Offer to reload the page if the server was upgraded. @param {Account} account */
async function checkBuild(account) {
  const now = await currentAccount().catch(() => null)
  if (!now || now.build === account.build || document.querySelector(".upgrade")) return
  document.body.append(
    h("div", { class: "toast upgrade", role: "status" }, "Parley was upgraded.", h("button", { type: "button", class: "button small", onclick: () => location.reload() }, "Reload")),
  )
}

async function showKeys() {
  const keys = await import("./dialogs/keys.js")
  keys.showKeys()
}

/** @param {string} text */
function announceVisibly(text) {
  const toast = h("div", { class: "toast", role: "status" }, text)
  document.body.append(toast)
  setTimeout(() => toast.remove(), 5000)
}

main()
