// A thread that runs a graph. First it is told what to open, then one question at a time.

import { openDecoder, openEncoder } from "./engine.js";

const OPENERS = { decoder: openDecoder, encoder: openEncoder };
let opened = null;

async function answer({ library, opens, question, ...parts }) {
  if (!library) return (await opened)(...question);
  const address = URL.createObjectURL(new Blob([library], { type: "text/javascript" })); // a page from a disk shares none
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
