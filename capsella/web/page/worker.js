// A worker thread that runs the encoder. The first message opens it, each further one holds the pixels of an image.

import { openEncoder } from "./engine.js";

let opened = null;

async function answer({ library, pixels, ...parts }) {
  if (!library) return (await opened)(pixels);
  const address = URL.createObjectURL(new Blob([library], { type: "text/javascript" })); // made here, since a page from a disk shares no blob URLs with workers
  opened = import(address).then((ort) => openEncoder(ort, parts));
  return opened.then(() => null);
}

onmessage = async ({ data }) => {
  try {
    postMessage({ answer: await answer(data) });
  } catch (error) {
    postMessage({ failure: `this browser cannot run the network: ${error.message}` });
  }
};
