// The engine of a view whose model runs in the kernel: it is asked as that of the page, which
// engine/client.js describes, and firsttoken.live.kernel answers, by messages through the widget.

const SILENT_MS = 10_000;
const SILENT =
  "The kernel does not answer. If it is busy, wait until it is idle; if it was stopped, run the cell again.";
const READING = "The kernel reads the text.";
// All pages that show a view hear all answers: each numbers its own questions.
const MODULE = Math.random().toString(36).slice(2, 8);
let n_asked = 0;

// `say` is told what takes long, and "" when the kernel has answered.
export function openKernelEngine(widget, say) {
  const arch = widget.get("arch");
  let silence = 0;
  let newest; // what becomes of the last text
  let reading; // the handle of the last `next`: a text that was edited need not be read to its end

  const post = (message) => {
    clearTimeout(silence);
    silence = setTimeout(say, SILENT_MS, SILENT);
    try {
      widget.send(message);
    } catch {
      say(SILENT); // there is no kernel
    }
  };

  function ask(name, asked, onEvent) {
    const id = `${MODULE}-${(n_asked += 1)}`;
    const started = performance.now();
    let stopped = false;
    const done = new Promise((resolve, reject) => {
      const hear = ({ id: whose, kind, value }) => {
        if (whose !== id) return;
        clearTimeout(silence);
        const reads = kind === "event" && value === null;
        say(reads && !stopped ? READING : "");
        if (kind === "event" && !stopped) {
          if (!reads) onEvent?.(value);
          return post({ id });
        }
        widget.off("msg:custom", hear);
        if (kind === "event") widget.send({ id, stop: true });
        const seconds = (performance.now() - started) / 1000;
        if (kind === "failed") reject(new Error(value));
        else resolve(kind === "done" ? value : { finish_reason: "stopped", seconds });
      };
      widget.on("msg:custom", hear);
      post({ id, name, asked });
      if (onEvent) post({ id }); // so that the kernel need not wait for the page between two steps
    });
    return { done, stop: () => (stopped = true) };
  }

  return {
    drafts: ["suffix_automaton"],
    need: async () => {},
    arch: () => arch,
    decode: (ids) => ask("decode", { ids }).done,
    tokenize: async (text) => {
      const mine = ask("tokenize", { text }).done;
      newest = mine;
      const found = await mine;
      if (mine !== newest) return newest; // the text is another by now
      reading?.stop();
      return found;
    },
    next: async (asked) => {
      reading = ask("next", asked);
      const answer = await reading.done;
      if (answer.finish_reason) throw new Error(""); // stopped: the view asks again by itself
      return answer;
    },
    inside: async (asked) => {
      const answer = await ask("inside", asked).done;
      return { ...answer, attention: Float32Array.from(answer.attention) };
    },
    write: (asked, onToken) => ask("write", asked, onToken),
    speculate: (asked, onRound) => ask("speculate", asked, onRound),
    withoutEach: (asked, onHead) => ask("withoutEach", asked, onHead),
  };
}
