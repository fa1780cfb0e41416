// Theme, navigation on narrow screens, copying of code, and search. Without scripts, all pages are readable.

const root = document.currentScript.dataset.root;
const element = (id) => document.getElementById(id);

// --- theme ---

element("theme").addEventListener("click", () => {
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  const current = document.documentElement.dataset.theme ?? system;
  const next = current === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem("parley-docs-theme", next);
  } catch {
    // The theme then applies to this page only.
  }
});

// --- navigation ---

element("menu").addEventListener("click", (event) => {
  const isOpen = document.body.classList.toggle("menu-open");
  event.currentTarget.setAttribute("aria-expanded", String(isOpen));
});
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest" });

const contents = new Map([...document.querySelectorAll("aside a")].map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      for (const link of contents.values()) link.classList.remove("here");
      contents.get(target.id).classList.add("here");
    }
  },
  { rootMargin: "-10% 0px -75% 0px" },
);
for (const id of contents.keys()) seen.observe(element(id));

// --- code ---

for (const figure of document.querySelectorAll("figure.code")) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.className = "copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(codeOf(figure));
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  figure.append(button);
}

/** Returns the commands of a console, without prompts and output, and the whole text of other code. */
function codeOf(figure) {
  const text = figure.querySelector("code").textContent;
  if (figure.dataset.language !== "console") return text;
  const lines = text.split("\n");
  const commands = lines.filter((line, index) => /^[$>] /.test(line) || lines[index - 1]?.endsWith("\\"));
  return commands.map((line) => line.replace(/^[$>] /, "")).join("\n");
}

// --- search ---

const MAX_RESULTS = 12;
const input = element("search");
const results = element("results");
let loading;

/** Loads the index when the first search begins. */
function loadIndex() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = `${root}/assets/search-index.js`;
    script.onload = () => resolve(window.searchIndex);
    script.onerror = reject;
    document.head.append(script);
  });
  return loading;
}

function score(entry, words) {
  const heading = entry.heading.toLowerCase();
  const page = entry.page.toLowerCase();
  const text = entry.text.toLowerCase();
  let total = 0;
  for (const word of words) {
    if (heading === word) total += 30;
    else if (heading.includes(word)) total += heading.startsWith(word) ? 14 : 10;
    else if (page.includes(word)) total += 4;
    else if (text.includes(word)) total += 1;
    else return 0;
  }
  return total;
}

function excerpt(text, words) {
  const at = Math.min(...words.map((word) => text.toLowerCase().indexOf(word)).filter((found) => found >= 0));
  const from = Number.isFinite(at) ? Math.max(0, at - 40) : 0;
  return (from ? "…" : "") + text.slice(from, from + 130);
}

function show(found, words) {
  results.replaceChildren(
    ...found.map((entry) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${root}/${entry.address}`;
      const title = document.createElement("b");
      title.textContent = entry.heading;
      const page = document.createElement("small");
      page.textContent = entry.page === entry.heading ? "" : entry.page;
      const text = document.createElement("span");
      text.textContent = excerpt(entry.text, words);
      link.append(title, " ", page, text);
      item.append(link);
      return item;
    }),
  );
  if (!found.length) {
    const item = document.createElement("li");
    item.textContent = "No page contains these words.";
    results.append(item);
  }
}

input.addEventListener("focus", loadIndex);
input.addEventListener("input", async () => {
  const index = await loadIndex();
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  results.hidden = words.length === 0;
  if (!words.length) return;
  const scored = index.map((entry) => [score(entry, words), entry]).filter(([points]) => points > 0);
  scored.sort(([a], [b]) => b - a);
  show(scored.slice(0, MAX_RESULTS).map(([, entry]) => entry), words);
});

document.addEventListener("keydown", (event) => {
  if (event.key === "/" && !event.target.matches("input, textarea")) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Escape") {
    input.blur();
    results.hidden = true;
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && event.target.closest(".search")) {
    event.preventDefault();
    const links = [...results.querySelectorAll("a")];
    const next = links.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1);
    (links[next] ?? input).focus();
  } else if (event.key === "Enter" && event.target === input) {
    results.querySelector("a")?.click();
  }
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".search")) results.hidden = true;
});
results.addEventListener("click", () => (results.hidden = true));
