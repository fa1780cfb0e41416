/** The images and files that the user has pasted, dropped or chosen for the next message. */

import { fill, h, iconButton } from "../dom.js"

const MAX_BYTES = 20 * 1024 * 1024

export class Attachments {
  /** @param {(problem: string) => void} onProblem */
  constructor(onProblem) {
    this.onProblem = onProblem
    /** @type {any[]} content items */
    this.items = []
    this.input = h("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to attach" })
    this.input.addEventListener("change", () => {
      void this.take(this.input.files)
      this.input.value = ""
    })
    this.node = h("div", { class: "attachments", hidden: true })
  }

  /** Add files to the next message. @param {FileList | null | undefined} files */
  async take(files) {
    for (const file of Array.from(files ?? [])) {
      if (file.size > MAX_BYTES) {
        this.onProblem(`${file.name} is larger than 20 MB.`)
        continue
      }
      const url = await dataUrl(file)
      if (/^image\/(png|jpeg|gif|webp)$/.test(file.type)) this.items.push({ type: "image", image_url: url })
      else this.items.push({ type: "file", file_data: url.slice(url.indexOf(",") + 1), filename: file.name })
    }
    this.draw()
  }

  clear() {
    this.items = []
    this.draw()
  }

  /** @private */
  draw() {
    this.node.hidden = this.items.length === 0
    fill(
      this.node,
      ...this.items.map((item) =>
        h(
          "span",
          { class: "attachment" },
          item.type === "image" ? h("img", { src: item.image_url, alt: "Image to send" }) : h("span", { class: "file-name" }, item.filename),
          iconButton("close", `Remove ${item.filename ?? "the image"}`, () => {
            this.items = this.items.filter((one) => one !== item)
            this.draw()
          }),
        ),
      ),
    )
  }
}

/** @param {File} file @returns {Promise<string>} */
function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader()
    reader.onload = () => resolve(String(reader.result))
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`))
    reader.readAsDataURL(file)
  })
}
