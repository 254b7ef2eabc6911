// The page's side of the worker.
import worker from "built/worker.txt";

export async function openEngine(host, onProgress) {
  onProgress(0, 1);
  return { host, worker };
}
