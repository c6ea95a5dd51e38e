// The part of the chat page that runs in the browser: files, keys, the list of sessions that the browser keeps, and scrolling.
const chatPage = (() => {
  const SESSIONS = "ts-stateful:";
  const THEME = "ts-stateful:theme";
  const SETTLED_MS = 100; // until all parts of an update are shown

  function applyTheme() {
    const chosen = localStorage.getItem(THEME);
    if (chosen) document.body.classList.toggle("dark", chosen === "dark");
  }

  // The style sheet reaches only what is inside Gradio's container, which the body is not.
  function drawer(isOpen) {
    document.getElementById("page")?.classList.toggle("with-drawer", isOpen);
  }

  function local(act) {
    if (act.do === "theme") {
      const isDark = document.body.classList.toggle("dark");
      localStorage.setItem(THEME, isDark ? "dark" : "light");
    } else if (act.do === "drawer") {
      drawer();
    } else {
      return false;
    }
    return true;
  }

  // Clicks on elements with `data-do` become acts, with all their data.
  function acts(element, trigger) {
    element.addEventListener("click", (event) => {
      const target = event.target.closest("[data-do]");
      if (!target) return;
      const act = { ...target.dataset };
      if (local(act)) return;
      drawer(false);
      trigger(act);
      // The clicked element is drawn again and would lose the focus.
      (target.closest(".pane") ?? document).querySelector(".box textarea")?.focus();
    });
  }

  function pictures(element, upload, trigger) {
    acts(element, trigger);
    const input = element.querySelector("input[type=file]");
    const drop = element.querySelector(".drop");

    async function add(files) {
      if (!files.length) return;
      drop.classList.add("busy");
      try {
        const sources = [];
        for (const file of files) sources.push((await upload(file)).path);
        trigger({ do: "add", sources });
      } finally {
        drop.classList.remove("busy");
        input.value = "";
      }
    }

    input.addEventListener("change", () => add([...input.files]));
    element.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      const field = element.querySelector("form input");
      if (field.value.trim()) trigger({ do: "add", sources: [field.value] });
      field.value = "";
    });
    // Programs that copy cells or rich text add a picture of it, and text is dragged too.
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("paste", (event) => {
      const files = [...(event.clipboardData?.files ?? [])];
      const isText = event.clipboardData?.types.includes("text/plain") && event.target.closest("textarea, input");
      if (!files.length || isText) return;
      event.preventDefault();
      add(files);
    });
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      drop.classList.add("over");
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) drop.classList.remove("over");
    });
    document.addEventListener("drop", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      drop.classList.remove("over");
      add([...event.dataTransfer.files]);
    });
  }

  // The text of the newest update of an output: updates of two handlers may come in another order than they were made.
  const outputs = new Map();

  function newest(name, value) {
    const end = value.indexOf(" ");
    const number = Number(value.slice(0, end));
    if (number >= (outputs.get(name)?.number ?? 0)) outputs.set(name, { number, text: value.slice(end + 1) });
    return outputs.get(name).text;
  }

  // Each session has a key of its own, so that tabs do not overwrite each other's list. The panes are the tab's own.
  function keep(element, props, watch, restored, changed) {
    const prefix = props.prefix;
    const written = {};

    function entries() {
      const found = [];
      for (const key of Object.keys(localStorage)) {
        if (!key.startsWith(prefix)) continue;
        try {
          const text = localStorage.getItem(key);
          found.push(JSON.parse(text));
          written[key] = text;
        } catch {
          localStorage.removeItem(key);
        }
      }
      return found;
    }

    // The time of the last turn of a session in the store; 0 for anything else.
    const at = (key) => Number(/"at":([\d.]+)/.exec(localStorage.getItem(key))?.[1] ?? 0);

    // A full store loses its oldest sessions first, of whichever server. What another tab has written later stays.
    function write(session) {
      const key = prefix + session.id;
      const text = JSON.stringify(session);
      if (written[key] === text || at(key) > session.at) return;
      written[key] = text;
      for (;;) {
        try {
          return localStorage.setItem(key, text);
        } catch {
          const others = Object.keys(localStorage).filter((other) => other.startsWith(SESSIONS) && other !== key && at(other));
          if (!others.length) return;
          localStorage.removeItem(others.reduce((one, other) => (at(other) < at(one) ? other : one)));
        }
      }
    }

    watch("value", () => {
      const { put = [], drop = [], shown = [], pending = [] } = JSON.parse(newest(props.name, props.value));
      put.forEach(write);
      for (const id of drop) localStorage.removeItem(prefix + id);
      try {
        sessionStorage.setItem(prefix, JSON.stringify({ shown, pending }));
      } catch {
        sessionStorage.setItem(prefix, JSON.stringify({ shown }));
      }
    });
    window.addEventListener("storage", (event) => {
      if (event.key?.startsWith(prefix)) changed({ entries: entries() });
    });
    const { shown = [], pending = [] } = JSON.parse(sessionStorage.getItem(prefix) || "{}");
    setTimeout(() => restored({ entries: entries(), shown, pending }), 0);
  }

  // Panes without a state are not shown; one that is live has a reply in progress.
  function states(props, watch) {
    document.body.append(spoken);
    watch("value", () => {
      const all = JSON.parse(newest(props.name, props.value));
      document.querySelectorAll(".pane").forEach((pane, number) => {
        const hasEnded = pane.dataset.state === "live" && all[number] === "still";
        if (number < all.length) pane.dataset.state = all[number];
        else delete pane.dataset.state;
        if (hasEnded) setTimeout(() => speak(pane), SETTLED_MS);
      });
    });
  }

  // The box of a pane loses the question that was `sent`; one comes `back` before what was typed meanwhile.
  function box(props, watch, number) {
    watch("value", () => {
      const { sent = "", back = "" } = JSON.parse(props.value.slice(props.value.indexOf(" ")));
      const area = document.querySelector(`#pane-${number} .box textarea`);
      const typed = area.value.startsWith(sent) ? area.value.slice(sent.length) : area.value;
      area.value = typed.startsWith(back) ? typed : [back, typed].filter(Boolean).join("\n\n");
      area.dispatchEvent(new Event("input", { bubbles: true }));
    });
  }

  // Screen readers read each reply once, at its end: of one that grows they would read each paragraph with each token.
  const spoken = document.createElement("div");
  spoken.setAttribute("role", "status");
  spoken.style = "position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%)";

  function speak(pane) {
    spoken.textContent = [...pane.querySelectorAll(".turns .reply")].at(-1)?.innerText ?? "";
  }

  // A pane stays at its end while a reply comes, unless its reader has scrolled up. On a phone the whole page scrolls.
  function follow(scroller) {
    let isAtEnd = true;
    scroller.addEventListener("scroll", () => {
      isAtEnd = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 60;
    });
    new MutationObserver(() => {
      if (isAtEnd) scroller.scrollTop = scroller.scrollHeight;
      if (scroller.scrollTop === 0) scroller.querySelector(".live")?.scrollIntoView({ block: "nearest" });
    }).observe(scroller, { childList: true, subtree: true, characterData: true });
  }

  function escape(event) {
    if (event.key !== "Escape") return;
    drawer(false);
    const live = ".pane[data-state=live]";
    const pane = document.activeElement?.closest(live) ?? document.querySelector(live);
    pane?.querySelector(".stop").click();
  }

  document.addEventListener("keydown", escape);
  function start() {
    applyTheme();
    const followed = new WeakSet();
    new MutationObserver(() => {
      for (const scroller of document.querySelectorAll(".scroller")) {
        if (!followed.has(scroller)) follow(scroller);
        followed.add(scroller);
      }
    }).observe(document.body, { childList: true, subtree: true });
  }

  // Gradio may run this script when the document is there already.
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
  return { acts, pictures, newest, keep, states, box };
})();
