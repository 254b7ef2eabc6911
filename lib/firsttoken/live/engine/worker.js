// The worker: it holds the models and answers the page. See client.js for what it is asked.
import kernel from "built/kernel.wasm";

self.onmessage = () => kernel;
