// Runs the library's closed forms: Python in a worker, so that the page never waits for it.
import { loadPyodide } from "./pyodide/pyodide.mjs";

// Pyodide fetches by itself; what arrives is counted on its way, for the progress bar.
const plainFetch = self.fetch;
self.fetch = async (...request) => counted(await plainFetch(...request));

function counted(response) {
  const counter = new TransformStream({
    transform(chunk, controller) {
      self.postMessage({ kind: "received", bytes: chunk.byteLength });
      controller.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(counter), response);
}

async function fetched(name) {
  const response = await fetch(new URL(name, import.meta.url));
  if (!response.ok) throw new Error(`${name}: ${response.status}`);
  return response.arrayBuffer();
}

function firstLine(error) {
  return String(error).split("\n", 1)[0];
}

async function start() {
  const [python, formulas] = await Promise.all([
    loadPyodide({ indexURL: new URL("pyodide/", import.meta.url).href }),
    fetched("formulas.zip"),
  ]);
  python.unpackArchive(formulas, "zip");
  return python.pyimport("page").answer;
}

try {
  const answer = await start();
  self.onmessage = ({ data }) => {
    try {
      self.postMessage({ kind: "answer", ...JSON.parse(answer(JSON.stringify(data))) });
    } catch (error) {
      self.postMessage({ kind: "failed", reason: firstLine(error) });
    }
  };
  self.postMessage({ kind: "ready" });
} catch (error) {
  self.postMessage({ kind: "failed", reason: firstLine(error) });
}
