// A chat on the site: what chat.js asks of a widget, answered by an engine of the page, as chat.py
// does in JupyterLab.
const ENDS = {
  eos: "The model ended its answer.",
  length: "Cut off: so many tokens were asked for.",
  context: "Cut off: the model's context is full.",
  stopped: "You stopped it.",
};
const count = (n) => n.toLocaleString("en");

// `shared` holds {said, system, temperature, max_tokens, seed}. Returns the widget, with an `end()`.
export function openConversation(engine, shared) {
  const { max_context } = engine.arch("target");
  const handlers = new Set(); // {name, handler}
  const values = {
    parts: [],
    state: { phase: "ready", note: "", answer: "", n_tokens: 0, max_context },
  };
  let nAnswers = 0; // every one has a seed of its own
  let job;
  let stopped = false;
  let ended = false;

  const get = (name) => (name === "settings" ? shared.get() : (values[name] ?? shared.get()[name]));
  const changed = (name) => {
    for (const each of handlers) if (each.name === `change:${name}`) each.handler();
  };
  const say = (note, changes) => {
    values.state = { ...values.state, note, answer: "", ...changes };
    changed("state");
  };
  const setParts = (parts) => {
    values.parts = parts;
    changed("parts");
  };
  const setSaid = (said) => {
    shared.set({ said });
    changed("said");
  };
  const messages = () => {
    const { system, said } = shared.get();
    return [...(system ? [{ role: "system", content: system }] : []), ...said];
  };

  // Do what takes time, and be ready for more.
  async function work(task, phase) {
    stopped = false;
    say("", { phase });
    let note;
    try {
      note = await task();
    } catch (error) {
      note = error.message;
    }
    job = undefined;
    say(note, { phase: "ready" });
  }

  // The text of what has been said so far.
  async function read() {
    const { ids, parts } = await engine.chat({
      messages: messages(),
      add_generation_prompt: false,
    });
    setParts(parts);
    say("", { n_tokens: ids.length });
    return "";
  }

  async function answer() {
    const { temperature, seed, max_tokens } = shared.get();
    const { ids, parts } = await engine.chat({ messages: messages() });
    const nKnown = await engine.known({ ids });
    const tokens =
      `${count(ids.length)} tokens: ${count(nKnown)} stood in the cache, ` +
      `${count(ids.length - nKnown)} new.`;
    setParts(parts);
    say(`Reading. ${tokens}`, { n_tokens: ids.length });
    const params = { temperature, seed: (seed + nAnswers) % 2 ** 32 };
    nAnswers += 1;
    const times = [];
    const asked = { ids, params, max_tokens, top: 0 };
    job = engine.write(asked, ({ text, at_ms, ids_length: n_tokens }) => {
      times.push(at_ms);
      say(`Writing. ${tokens}`, { answer: values.state.answer + text, n_tokens });
    });
    if (stopped) job.stop();
    const { finish_reason, ids: written, text: content } = await job.done;
    // Another conversation goes on with what was said: it writes the answer itself.
    if (ended) return "";
    setSaid([...shared.get().said, { role: "assistant", content }]);
    setParts((await engine.parts({ ids: [...ids, ...written] })) ?? []);
    // The first token came with the reading.
    const pace = (1000 * (times.length - 1)) / (times.at(-1) - times[0]);
    const speed = times.length > 1 ? `, ${pace.toFixed(0)} per second` : "";
    return `${tokens} ${count(written.length)} written${speed}. ${ENDS[finish_reason]}`;
  }

  const stop = () => {
    stopped = true;
    job?.stop();
  };

  const hear = {
    stop,
    clear: async () => {
      stop();
      await working;
      nAnswers = 0;
      setSaid([]);
      setParts([]);
      say("", { n_tokens: 0 });
    },
    send: ({ text, settings }) => {
      if (settings.seed !== shared.get().seed) nAnswers = 0;
      shared.set(settings);
      setSaid([...shared.get().said, { role: "user", content: text }]);
      working = work(answer, "writing");
    },
  };

  let working;
  const last = shared.get().said.at(-1);
  if (last) working = last.role === "user" ? work(answer, "writing") : work(read, "loading");
  return {
    get,
    send: (message) => hear[message.kind](message),
    on: (name, handler) => handlers.add({ name, handler }),
    off: (name, handler) => {
      for (const each of handlers)
        if (each.name === name && each.handler === handler) handlers.delete(each);
    },
    end: () => {
      ended = true;
      handlers.clear();
      stop();
    },
  };
}
