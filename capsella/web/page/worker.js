// A worker thread that runs an ONNX graph. The first message says which one to open, each further one is a question.

import { openDecoder, openEncoder } from "./engine.js";

const OPENERS = { decoder: openDecoder, encoder: openEncoder };
let opened = null;

async function answer({ library, opens, question, ...parts }) {
  if (!library) return (await opened)(...question);
  const address = URL.createObjectURL(new Blob([library], { type: "text/javascript" })); // made here, since a page from a disk shares no blob URLs with workers
  opened = import(address).then((ort) => OPENERS[opens](ort, parts));
  return opened.then(() => null);
}

onmessage = async ({ data }) => {
  try {
    postMessage({ answer: await answer(data) });
  } catch (error) {
    postMessage({ failure: `this browser cannot run the network: ${error.message}` });
  }
};
